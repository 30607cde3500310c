/* Subcommands of `cube`. argv[0] is the command's name; the value is the exit status: 0 done, 1 failed, 2
 * wrong usage. */
#pragma once

int cmd_up(int argc, char **argv);
int cmd_down(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_env(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_sandbox(int argc, char **argv);
int cmd_key(int argc, char **argv);
int cmd_node(int argc, char **argv);
int cmd_vm(int argc, char **argv);
int cmd_why(int argc, char **argv);
