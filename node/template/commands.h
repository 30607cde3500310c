/* The offline subcommands of cube-node. */
#pragma once

/** Runs "template import|ls|rm"; returns the exit status. */
int commands_run(int argc, char **argv);
