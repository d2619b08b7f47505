/* A server without a client, its options, and what its clients see when it stops. */
#include "check.h"

#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Whether the library logs this while a store cannot be reached, with this level. */
static bool logs(int32_t level, const char *line) {
    c10d_options *options;
    c10d_server *server;
    c10d_store *store;
    uint16_t port = 0;
    OK(c10d_log_to_stderr(level));
    OK(c10d_options_new(&options));
    OK(c10d_options_set_timeout(options, 2500));
    OK(c10d_server_start("127.0.0.1", 0, NULL, &server));
    OK(c10d_server_port(server, &port));
    c10d_server_free(server);
    FILE *log = tmpfile();
    CHECK(log != NULL);
    int before = dup(STDERR_FILENO);
    CHECK(before >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    c10d_status status = c10d_store_connect("127.0.0.1", port, options, &store);
    CHECK(dup2(before, STDERR_FILENO) >= 0 && close(before) == 0);
    CHECK(status == C10D_ERROR_CONNECT);
    char text[8192] = {0};
    rewind(log);
    size_t length = fread(text, 1, sizeof text - 1, log);
    CHECK(fclose(log) == 0);
    c10d_options_free(options);
    CHECK(level != C10D_LOG_NOTHING || length == 0);
    return strstr(text, line) != NULL;
}

static void log_lines(void) {
    CHECK(!logs(C10D_LOG_NOTHING, "c10d: "));
    CHECK(logs(C10D_LOG_PROGRESS, "c10d: info: still connecting to 127.0.0.1:"));
    CHECK(!logs(C10D_LOG_WARNINGS, "c10d: info: "));
    RETURNS(C10D_ERROR_INVALID_ARGUMENT, c10d_log_to_stderr(7));
    SAYS("log level of 7");
    OK(c10d_log_to_stderr(C10D_LOG_NOTHING));
}

/* A store in a directory: it outlives its server, has one, and says why it has ended. */
static void directories(void) {
    char path[] = "/tmp/c10d-servers-XXXXXX";
    c10d_options *options;
    c10d_server *server;
    c10d_server *second;
    c10d_store *store;
    c10d_buffer value;
    uint16_t port = 0;
    CHECK(mkdtemp(path) != NULL);
    OK(c10d_options_new(&options));
    OK(c10d_options_set_directory(options, path));
    OK(c10d_server_start("127.0.0.1", 0, options, &server));
    OK(c10d_server_port(server, &port));
    OK(c10d_server_check(server));
    OK(c10d_store_connect("127.0.0.1", port, NULL, &store));
    OK(c10d_store_add(store, S("n"), 5, NULL));
    RETURNS(C10D_ERROR_JOURNAL, c10d_server_start("127.0.0.1", 0, options, &second));
    SAYS("is in use by process ");
    c10d_store_free(store);
    OK(c10d_server_stop(server));
    RETURNS(C10D_ERROR_CLOSED, c10d_server_check(server));
    c10d_server_free(server);

    OK(c10d_server_start("127.0.0.1", 0, options, &server));
    OK(c10d_server_port(server, &port));
    OK(c10d_store_connect("127.0.0.1", port, NULL, &store));
    OK(c10d_store_get(store, S("n"), 1000, NULL, &value));
    HOLDS(value, "5");

    /* A file that may not grow, as on a full disk. This process goes on. */
    struct rlimit before;
    struct rlimit full = {4096, RLIM_INFINITY};
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &before) == 0);
    full.rlim_max = before.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &full) == 0);
    c10d_status added = C10D_OK;
    for (int i = 0; i < 1000 && added == C10D_OK; i++) added = c10d_store_add(store, S("n"), 1, NULL);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(added == C10D_ERROR_CONNECTION_LOST && c10d_last_outcome() == C10D_OUTCOME_UNKNOWN);
    RETURNS(C10D_ERROR_JOURNAL, c10d_server_check(server));
    SAYS("cannot append to the journal");
    c10d_store_free(store);
    c10d_server_free(server);
    OK(c10d_server_start("127.0.0.1", 0, options, &server));
    OK(c10d_server_check(server));
    c10d_server_free(server);
    c10d_options_free(options);
    const char *names[] = {"journal.db", "journal.db-wal", "newest", "owner"};
    for (size_t i = 0; i < 4; i++) {
        char file[64];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        unlink(file);
    }
    CHECK(rmdir(path) == 0);
}

int main(int argc, char **argv) {
    c10d_server *server;
    c10d_server *second;
    c10d_store *store;
    c10d_store *other;
    c10d_options *options;
    uint16_t port = 0;
    uint16_t same = 0;
    size_t count = 7;
    OK(c10d_server_start("127.0.0.1", 0, NULL, &server));
    OK(c10d_server_port(server, &port));
    CHECK(port != 0);
    OK(c10d_server_connection_count(server, &count));
    CHECK(count == 0);
    RETURNS(C10D_ERROR_SERVER, c10d_server_start("127.0.0.1", port, NULL, &second));
    CHECK(second == NULL);
    RETURNS(C10D_ERROR_SERVER, c10d_server_start("192.0.2.1", 0, NULL, &second));
    OK(c10d_store_connect("localhost", port, NULL, &store));
    OK(c10d_server_connection_count(server, &count));
    CHECK(count == 1);

    OK(c10d_server_stop(server));
    OK(c10d_server_stop(server));
    OK(c10d_server_port(server, &same));
    CHECK(same == port);
    RETURNS(C10D_ERROR_CLOSED, c10d_server_connection_count(server, &count));
    RETURNS(C10D_ERROR_CONNECTION_LOST, c10d_store_add(store, S("n"), 1, NULL));
    SAYS("the connection to the server was lost");
    c10d_store_free(store);

    /* Nothing listens: the time limit of the options holds. */
    OK(c10d_options_new(&options));
    OK(c10d_options_set_timeout(options, 50));
    RETURNS(C10D_ERROR_CONNECT, c10d_store_connect("127.0.0.1", port, options, &store));
    CHECK(c10d_last_outcome() == C10D_OUTCOME_NOT_SENT && store == NULL);
    c10d_server_free(server);

    /* A master that waits for a worker that does not join. */
    OK(c10d_options_set_world_size(options, 2));
    OK(c10d_options_set_timeout(options, 1000));
    RETURNS(C10D_ERROR_MISSING_RANKS, c10d_store_open_master("127.0.0.1", 0, options, &store));
    SAYS("1 of 2 workers");
    OK(c10d_options_set_timeout(options, 60000));
    OK(c10d_options_set_wait_for_workers(options, false));
    OK(c10d_store_open_master("127.0.0.1", 0, options, &store));
    c10d_store_free(store);
    c10d_options_free(options);

    /* One connection at a time. */
    OK(c10d_options_new(&options));
    OK(c10d_options_set_connections_max(options, 1));
    OK(c10d_server_start("*", 0, options, &server));
    OK(c10d_server_port(server, &port));
    OK(c10d_store_connect("127.0.0.1", port, NULL, &store));
    OK(c10d_options_set_timeout(options, 300));
    CHECK(c10d_store_connect("127.0.0.1", port, options, &other) != C10D_OK);
    OK(c10d_store_set(store, S("k"), S("v")));
    c10d_store_free(store);
    c10d_server_free(server);
    c10d_options_free(options);

    /* Masters of one port share a server; a store that resumes; the secret of the first argument. */
    OK(c10d_options_new(&options));
    if (argc > 1) OK(c10d_options_set_secret_file(options, argv[1]));
    OK(c10d_options_set_resume(options, 60000));
    OK(c10d_options_set_multi_tenant(options, true));
    /* They need a port number, and another process may take the one that was free. */
    c10d_status opened = C10D_ERROR_SERVER;
    for (int attempt = 0; attempt < 10 && opened == C10D_ERROR_SERVER; attempt++) {
        OK(c10d_store_open_master("127.0.0.1", 0, NULL, &store));
        OK(c10d_store_port(store, &port));
        c10d_store_free(store);
        opened = c10d_store_open_master("127.0.0.1", port, options, &store);
    }
    OK(opened);
    OK(c10d_store_open_master("127.0.0.1", port, options, &other));
    OK(c10d_store_set(store, S("k"), S("v")));
    c10d_store_free(store);
    c10d_buffer value;
    OK(c10d_store_get(other, S("k"), 1000, NULL, &value));
    HOLDS(value, "v");
    if (argc > 1) {
        c10d_options *without;
        OK(c10d_options_new(&without));
        OK(c10d_options_set_timeout(without, 300));
        CHECK(c10d_store_connect("127.0.0.1", port, without, &store) != C10D_OK);
        c10d_options_free(without);
        printf("servers: a client without the secret is refused: %s\n", c10d_last_error());
    }
    c10d_store_free(other);
    c10d_options_free(options);
    log_lines();
    directories();
    printf("servers: ok\n");
    return 0;
}
