/* A forked child neither uses nor ends the handles of its parent. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#define CHILD_CALLS 20000

static char folder[] = "/tmp/c10d-forks-XXXXXX";

/* The call is refused, and the text names both processes. */
#define FORKED(call)                                                  \
    do {                                                              \
        char child_[32];                                              \
        snprintf(child_, sizeof(child_), "forked child %d", getpid()); \
        RETURNS(C10D_ERROR_FORKED, call);                             \
        SAYS(child_);                                                 \
        CHECK(c10d_last_outcome() == C10D_OUTCOME_NOT_SENT);          \
    } while (0)

/* The child ended without a failed check. */
static void join(pid_t child) {
    int status = 0;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the child ended with status %d", status);
}

static void refuses_all(c10d_store *store) {
    c10d_buffer value;
    c10d_buffer_list list;
    c10d_bytes keys[1] = {bytes_of("k")};
    bool flag;
    int64_t number;
    uint64_t count;
    c10d_store *other;
    FORKED(c10d_store_set(store, S("k"), S("child")));
    FORKED(c10d_store_try_get(store, S("k"), &flag, &value));
    FORKED(c10d_store_get(store, S("k"), C10D_FOREVER, NULL, &value));
    FORKED(c10d_store_add(store, S("n"), 1, &number));
    FORKED(c10d_store_compare_set(store, S("k"), S("parent"), S("child"), NULL, NULL));
    FORKED(c10d_store_check(store, keys, 1, &flag));
    FORKED(c10d_store_wait(store, keys, 1, C10D_DEFAULT, NULL));
    FORKED(c10d_store_wait_change(store, S("k"), NULL, 0, C10D_DEFAULT, NULL, &value));
    FORKED(c10d_store_delete_key(store, S("k"), &flag));
    FORKED(c10d_store_num_keys(store, &count));
    FORKED(c10d_store_list_keys(store, &list));
    FORKED(c10d_store_append(store, S("k"), S("child")));
    FORKED(c10d_store_multi_get(store, keys, 1, C10D_DEFAULT, NULL, &list));
    FORKED(c10d_store_multi_set(store, keys, keys, 1));
    FORKED(c10d_store_queue_push(store, S("q"), S("child")));
    FORKED(c10d_store_queue_pop(store, S("q"), C10D_DEFAULT, NULL, &value));
    FORKED(c10d_store_try_queue_pop(store, S("q"), &flag, &value));
    FORKED(c10d_store_queue_take(store, S("q"), 1, C10D_DEFAULT, NULL, &list));
    FORKED(c10d_store_queue_len(store, S("q"), &count));
    FORKED(c10d_store_barrier(store, S("b"), 1, C10D_DEFAULT, NULL));
    FORKED(c10d_store_open_prefix(store, S("p"), &other));
    FORKED(c10d_store_clone(store, &other));
    FORKED(c10d_store_label(store, &value));
    FORKED(c10d_store_timeout(store, &number));
    FORKED(c10d_store_set_timeout(store, 1));
    FORKED(c10d_store_close(store));
}

int main(int argc, char **argv) {
    c10d_server *server;
    c10d_store *stores[7];
    c10d_group *group;
    c10d_options *options;
    c10d_cancel *cancel;
    c10d_buffer value;
    char path[sizeof(folder) + 8];
    uint16_t port = 0;
    size_t count = 0;
    pid_t child;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/store", folder);
    OK(c10d_cancel_new(&cancel));
    OK(c10d_options_new(&options));
    OK(c10d_options_set_world_size(options, 1));
    OK(c10d_server_start("127.0.0.1", 0, NULL, &server));
    OK(c10d_server_port(server, &port));
    OK(c10d_store_connect("127.0.0.1", port, NULL, &stores[0]));
    OK(c10d_store_open_prefix(stores[0], S("p"), &stores[1]));
    OK(c10d_store_clone(stores[0], &stores[2]));
    OK(c10d_store_open_hash(NULL, &stores[3]));
    OK(c10d_store_open_file(path, options, &stores[4]));
    OK(c10d_options_set_multi_tenant(options, true));
    if (argc > 1) OK(c10d_options_set_secret_file(options, argv[1]));
    OK(c10d_store_open_master("127.0.0.1", 0, options, &stores[5]));
    OK(c10d_group_join("g", stores[0], 0, 1, NULL, &group));
    OK(c10d_group_store(group, &stores[6]));

    /* A child uses, closes and frees everything, and its parent notices nothing. */
    child = fork();
    if (child == 0) {
        c10d_store *own;
        c10d_group *split;
        size_t rank = 0;
        uint64_t nanoseconds;
        uint16_t none;
        for (int i = 0; i < 7; i++) refuses_all(stores[i]);
        FORKED(c10d_store_port(stores[5], &none));
        FORKED(c10d_store_ping(stores[5], &nanoseconds));
        FORKED(c10d_server_port(server, &none));
        FORKED(c10d_server_connection_count(server, &count));
        FORKED(c10d_server_stop(server));
        FORKED(c10d_group_rank(group, &rank));
        FORKED(c10d_group_barrier(group, C10D_DEFAULT, NULL));
        FORKED(c10d_group_split(group, "half", &rank, 1, C10D_DEFAULT, NULL, &split));
        FORKED(c10d_group_finish(group, NULL));
        FORKED(c10d_group_store(group, &own));
        FORKED(c10d_group_join("h", stores[0], 0, 1, NULL, &split));
        c10d_group_free(group);
        for (int i = 6; i >= 0; i--) c10d_store_free(stores[i]);
        c10d_server_free(server);
        /* Options and cancel handles are plain memory: the child uses its copy. */
        OK(c10d_cancel_now(cancel));
        OK(c10d_cancel_reset(cancel));
        OK(c10d_options_set_cancel(options, cancel));
        c10d_options_free(options);
        /* A connection and a server of its own. */
        OK(c10d_store_connect("127.0.0.1", port, NULL, &own));
        OK(c10d_store_set(own, S("from the child"), S("x")));
        c10d_store_free(own);
        OK(c10d_store_open_master("127.0.0.1", 0, NULL, &own));
        OK(c10d_store_add(own, S("n"), 1, NULL));
        c10d_store_free(own);
        c10d_cancel_free(cancel);
        _exit(0);
    }
    join(child);
    OK(c10d_store_get(stores[0], S("from the child"), 0, NULL, &value));
    HOLDS(value, "x");
    for (int i = 0; i < 7; i++) {
        OK(c10d_store_set(stores[i], S("k"), S("parent")));
        OK(c10d_store_get(stores[i], S("k"), 0, NULL, &value));
        HOLDS(value, "parent");
    }
    /* The clone and the connection that the group and the prefix share. */
    OK(c10d_server_connection_count(server, &count));
    CHECK(count == 2);
    CHECK(access(path, F_OK) == 0);
    OK(c10d_group_barrier(group, C10D_DEFAULT, NULL));

    /* Both use the connection at a time: the parent gets its own values. */
    OK(c10d_store_set(stores[0], S("parent"), S("of the parent")));
    OK(c10d_store_set(stores[0], S("child"), S("of the child")));
    child = fork();
    if (child == 0) {
        for (int i = 0; i < CHILD_CALLS; i++)
            CHECK(c10d_store_get(stores[0], S("child"), 1000, NULL, &value) == C10D_ERROR_FORKED);
        CHECK(c10d_store_close(stores[0]) == C10D_ERROR_FORKED);
        c10d_store_free(stores[0]);
        _exit(0);
    }
    for (int i = 0; i < CHILD_CALLS; i++) {
        OK(c10d_store_get(stores[0], S("parent"), 60000, NULL, &value));
        HOLDS(value, "of the parent");
    }
    join(child);

    c10d_group_free(group);
    for (int i = 0; i < 7; i++) c10d_store_free(stores[i]);
    /* The file store was the last of its world size, once the parent freed it. */
    CHECK(access(path, F_OK) != 0);
    CHECK(rmdir(folder) == 0);
    c10d_server_free(server);
    c10d_options_free(options);
    c10d_cancel_free(cancel);
    puts("forks: ok");
    return 0;
}
