/** The command line of cube-envd. */
#pragma once

#define OPTIONS_LISTENERS 4

/** What the arguments said. Strings point into argv. */
struct options {
    long port;                             /**< TCP port; 0 takes a free one */
    const char *listen[OPTIONS_LISTENERS]; /**< addresses to listen on; none: loopback */
    int n_listen;
    int listen_fds[OPTIONS_LISTENERS]; /**< listening sockets from cube-init */
    int n_listen_fds;
    int control_fd, notify_fd; /**< from cube-init, or -1 */
    const char *cgroup;        /**< cgroup v2 directory, or NULL */
    unsigned end_kept_ms;      /**< how long the end of a process can be asked for */
};

/** Parses the arguments into `o`. Prints help or version and exits where asked for; exits with 2 where they
 * are wrong. */
void options_parse(struct options *o, int argc, char **argv);
