/* Null pointers, bad lengths and bad keys are refused, by every function. */
#include "check.h"

static void null_handles(c10d_store *store) {
    c10d_buffer value;
    c10d_buffer_list list;
    c10d_swapped swapped;
    c10d_bytes keys[1] = {bytes_of("k")};
    bool flag = true;
    int64_t number;
    uint64_t count;
    uint16_t port;
    size_t size;

    REFUSES("store is null", c10d_store_set(NULL, S("k"), S("v")));
    memset(&value, 0xff, sizeof value);
    REFUSES("store is null", c10d_store_get(NULL, S("k"), 0, NULL, &value));
    CHECK(value.data == NULL && value.len == 0);
    REFUSES("value is null", c10d_store_get(store, S("k"), 0, NULL, NULL));
    REFUSES("store is null", c10d_store_try_get(NULL, S("k"), &flag, &value));
    CHECK(!flag);
    REFUSES("found is null", c10d_store_try_get(store, S("k"), NULL, &value));
    REFUSES("value is null", c10d_store_try_get(store, S("k"), &flag, NULL));
    REFUSES("store is null", c10d_store_add(NULL, S("k"), 1, &number));
    REFUSES("store is null", c10d_store_compare_set(NULL, S("k"), S(""), S("v"), &swapped, &value));
    REFUSES("store is null", c10d_store_check(NULL, keys, 1, &flag));
    REFUSES("all_exist is null", c10d_store_check(store, keys, 1, NULL));
    REFUSES("store is null", c10d_store_wait(NULL, keys, 1, 0, NULL));
    REFUSES("store is null", c10d_store_wait_change(NULL, S("k"), S(""), 0, NULL, &value));
    REFUSES("value is null", c10d_store_wait_change(store, S("k"), S(""), 0, NULL, NULL));
    REFUSES("store is null", c10d_store_delete_key(NULL, S("k"), &flag));
    REFUSES("store is null", c10d_store_num_keys(NULL, &count));
    REFUSES("count is null", c10d_store_num_keys(store, NULL));
    REFUSES("store is null", c10d_store_list_keys(NULL, &list));
    REFUSES("keys is null", c10d_store_list_keys(store, NULL));
    REFUSES("store is null", c10d_store_append(NULL, S("k"), S("v")));
    REFUSES("store is null", c10d_store_multi_get(NULL, keys, 1, 0, NULL, &list));
    REFUSES("values is null", c10d_store_multi_get(store, keys, 1, 0, NULL, NULL));
    REFUSES("store is null", c10d_store_multi_set(NULL, keys, keys, 1));
    REFUSES("store is null", c10d_store_queue_push(NULL, S("k"), S("v")));
    REFUSES("store is null", c10d_store_queue_pop(NULL, S("k"), 0, NULL, &value));
    REFUSES("value is null", c10d_store_queue_pop(store, S("k"), 0, NULL, NULL));
    REFUSES("store is null", c10d_store_try_queue_pop(NULL, S("k"), &flag, &value));
    REFUSES("found is null", c10d_store_try_queue_pop(store, S("k"), NULL, &value));
    REFUSES("store is null", c10d_store_queue_take(NULL, S("k"), 1, 0, NULL, &list));
    REFUSES("values is null", c10d_store_queue_take(store, S("k"), 1, 0, NULL, NULL));
    REFUSES("store is null", c10d_store_queue_len(NULL, S("k"), &count));
    REFUSES("count is null", c10d_store_queue_len(store, S("k"), NULL));
    REFUSES("store is null", c10d_store_barrier(NULL, S("k"), 1, 0, NULL));
    REFUSES("store is null",
            c10d_store_set_ephemeral(NULL, S("k"), S("v"), NULL, 0, NULL, 0, &flag, &value));
    REFUSES("owned is null",
            c10d_store_set_ephemeral(store, S("k"), S("v"), NULL, 0, NULL, 0, NULL, &value));
    REFUSES("present is null",
            c10d_store_set_ephemeral(store, S("k"), S("v"), NULL, 0, NULL, 0, &flag, NULL));
    REFUSES("store is null", c10d_store_keep_alive(NULL, 0, &flag));
    REFUSES("kept is null", c10d_store_keep_alive(store, 0, NULL));
    REFUSES("store is null", c10d_store_end_waits(NULL, S("k"), &count));
    REFUSES("store is null", c10d_store_delete_prefix(NULL, S("k"), 0, &count));
    REFUSES("store is null", c10d_store_close(NULL));
    REFUSES("store is null", c10d_store_port(NULL, &port));
    REFUSES("port is null", c10d_store_port(store, NULL));
    REFUSES("store is null", c10d_store_ping(NULL, &count));
    REFUSES("nanoseconds is null", c10d_store_ping(store, NULL));
    REFUSES("store is null", c10d_store_label(NULL, &value));
    REFUSES("label is null", c10d_store_label(store, NULL));
    REFUSES("store is null", c10d_store_timeout(NULL, &number));
    REFUSES("timeout_ms is null", c10d_store_timeout(store, NULL));
    REFUSES("store is null", c10d_store_set_timeout(NULL, 1));

    c10d_store *other = store;
    REFUSES("underlying is null", c10d_store_open_prefix(NULL, S("p"), &other));
    CHECK(other == NULL);
    REFUSES("store is null", c10d_store_open_prefix(store, S("p"), NULL));
    REFUSES("original is null", c10d_store_clone(NULL, &other));
    REFUSES("store is null", c10d_store_clone(store, NULL));
    REFUSES("store is null", c10d_store_open_hash(NULL, NULL));
    REFUSES("host is null", c10d_store_connect(NULL, 1, NULL, &other));
    REFUSES("store is null", c10d_store_connect("127.0.0.1", 1, NULL, NULL));
    REFUSES("host is null", c10d_store_open_master(NULL, 0, NULL, &other));
    REFUSES("store is null", c10d_store_open_master("127.0.0.1", 0, NULL, NULL));
    REFUSES("path is null", c10d_store_open_file(NULL, NULL, &other));
    REFUSES("store is null", c10d_store_open_file("/tmp/x", NULL, NULL));

    REFUSES("cancel is null", c10d_cancel_new(NULL));
    REFUSES("cancel is null", c10d_cancel_now(NULL));
    REFUSES("cancel is null", c10d_cancel_reset(NULL));

    c10d_server *server;
    REFUSES("host is null", c10d_server_start(NULL, 0, NULL, &server));
    REFUSES("server is null", c10d_server_start("127.0.0.1", 0, NULL, NULL));
    REFUSES("server is null", c10d_server_port(NULL, &port));
    REFUSES("server is null", c10d_server_connection_count(NULL, &size));
    REFUSES("server is null", c10d_server_stop(NULL));

    c10d_group *group;
    REFUSES("group is null", c10d_group_init_from_env(NULL, NULL, NULL));
    REFUSES("store is null", c10d_group_join(NULL, NULL, 0, 1, NULL, &group));
    REFUSES("group is null", c10d_group_join(NULL, store, 0, 1, NULL, NULL));
    REFUSES("parent is null", c10d_group_split(NULL, "x", NULL, 0, 0, NULL, &group));
    REFUSES("group is null", c10d_group_rank(NULL, &size));
    REFUSES("group is null", c10d_group_world_size(NULL, &size));
    REFUSES("group is null", c10d_group_store(NULL, &other));
    REFUSES("group is null", c10d_group_broadcast(NULL, 0, NULL, 0, 0, NULL));
    REFUSES("group is null", c10d_group_broadcast_any(NULL, 0, NULL, 0, 0, NULL, &value));
    REFUSES("group is null", c10d_group_barrier(NULL, 0, NULL));
    REFUSES("group is null", c10d_group_all_gather(NULL, NULL, 0, 0, NULL, &list));
    REFUSES("group is null", c10d_group_finish(NULL, NULL));

    REFUSES("number is null", c10d_env_rank(NULL));
    REFUSES("number is null", c10d_env_world_size(NULL));
    REFUSES("number is null", c10d_env_local_rank(NULL));
    REFUSES("number is null", c10d_env_local_world_size(NULL));
    CHECK(c10d_last_missing_ranks(NULL) == NULL);

    /* Nothing to free. */
    c10d_store_free(NULL);
    c10d_server_free(NULL);
    c10d_cancel_free(NULL);
    c10d_options_free(NULL);
    c10d_group_free(NULL);
    c10d_buffer_free(NULL);
    c10d_buffer_list_free(NULL);
    memset(&value, 0, sizeof value);
    c10d_buffer_free(&value);
    memset(&list, 0, sizeof list);
    c10d_buffer_list_free(&list);
}

static void options(void) {
    c10d_options *options;
    REFUSES("options is null", c10d_options_new(NULL));
    REFUSES("options is null", c10d_options_set_timeout(NULL, 1));
    REFUSES("options is null", c10d_options_set_world_size(NULL, 1));
    REFUSES("options is null", c10d_options_set_wait_for_workers(NULL, true));
    REFUSES("options is null", c10d_options_set_multi_tenant(NULL, true));
    REFUSES("options is null", c10d_options_set_listen_address(NULL, "*"));
    REFUSES("options is null", c10d_options_set_resume(NULL, 1));
    REFUSES("options is null", c10d_options_set_secret_file(NULL, "x"));
    REFUSES("options is null", c10d_options_set_key_bytes_max(NULL, 1));
    REFUSES("options is null", c10d_options_set_value_bytes_max(NULL, 1));
    REFUSES("options is null", c10d_options_set_connections_max(NULL, 1));
    REFUSES("options is null", c10d_options_set_cancel(NULL, NULL));
    OK(c10d_options_new(&options));
    REFUSES("-9 ms", c10d_options_set_timeout(options, -9));
    REFUSES("world size of 0", c10d_options_set_world_size(options, 0));
    REFUSES("address", c10d_options_set_listen_address(options, "no address"));
    OK(c10d_options_set_listen_address(options, NULL));
    OK(c10d_options_set_listen_address(options, "127.0.0.1"));
    REFUSES("path is null", c10d_options_set_secret_file(options, NULL));
    RETURNS(C10D_ERROR_CREDENTIALS, c10d_options_set_secret_file(options, "/nonexistent"));
    OK(c10d_options_set_key_bytes_max(options, 16));
    OK(c10d_options_set_value_bytes_max(options, 4));
    OK(c10d_options_set_timeout(options, 5000));
    c10d_store *store;
    OK(c10d_store_open_master("127.0.0.1", 0, options, &store));
    c10d_options_free(options);
    int64_t timeout = 0;
    OK(c10d_store_timeout(store, &timeout));
    CHECK(timeout == 5000);
    OK(c10d_store_set(store, S("short"), S("1234")));
    RETURNS(C10D_ERROR_LIMIT, c10d_store_set(store, S("short"), S("12345")));
    RETURNS(C10D_ERROR_LIMIT, c10d_store_set(store, S("longer than 16 b"), S("")));
    /* The length is refused before the key is read: it has one byte. */
    c10d_bytes long_keys[1] = {{"k", (size_t)1 << 40}};
    bool flag;
    c10d_store *prefixed;
    RETURNS(C10D_ERROR_LIMIT, c10d_store_set(store, "k", (size_t)1 << 40, S("")));
    SAYS("at most 16");
    RETURNS(C10D_ERROR_LIMIT, c10d_store_check(store, long_keys, 1, &flag));
    RETURNS(C10D_ERROR_LIMIT, c10d_store_open_prefix(store, "p", (size_t)1 << 40, &prefixed));
    c10d_store_free(store);
}

static void lengths_and_keys(c10d_store *store) {
    c10d_bytes keys[2] = {bytes_of("fine"), bytes_of("\xc3(")};
    c10d_bytes null_key[1] = {{NULL, 5}};
    c10d_buffer value;
    bool flag;
    REFUSES("key is null, but its length is 3", c10d_store_set(store, NULL, 3, S("v")));
    REFUSES("value is null, but its length is 3", c10d_store_set(store, S("k"), NULL, 3));
    REFUSES("known is null", c10d_store_wait_change(store, S("k"), NULL, 2, 0, NULL, &value));
    REFUSES("address space", c10d_store_set(store, S("k"), "x", SIZE_MAX));
    REFUSES("will_key is null",
            c10d_store_set_ephemeral(store, S("k"), S("v"), NULL, 2, S("w"), &flag, &value));
    REFUSES("will_value is null",
            c10d_store_set_ephemeral(store, S("k"), S("v"), S("w"), NULL, 2, &flag, &value));
    REFUSES("keys is null", c10d_store_check(store, NULL, 2, &flag));
    REFUSES("address space", c10d_store_check(store, keys, SIZE_MAX / 2, &flag));
    REFUSES("a key is null", c10d_store_check(store, null_key, 1, &flag));
    REFUSES("a value is null", c10d_store_multi_set(store, keys, null_key, 1));
    c10d_store *other;
    REFUSES("host is not UTF-8", c10d_store_connect("\xff", 1, NULL, &other));
}

static void nested_prefixes(void) {
    static c10d_store *stores[200];
    int opened = 0;
    OK(c10d_store_open_hash(NULL, &stores[0]));
    while (c10d_store_open_prefix(stores[opened], S("p"), &stores[opened + 1]) == C10D_OK) opened++;
    CHECK(opened == 100);
    SAYS("100");
    RETURNS(C10D_ERROR_LIMIT, c10d_store_open_prefix(stores[opened], S("p"), &stores[opened + 1]));
    OK(c10d_store_set(stores[opened], S("k"), S("v")));
    for (int i = 0; i <= opened; i++) c10d_store_free(stores[i]);
}

int main(void) {
    c10d_store *store;
    OK(c10d_store_open_hash(NULL, &store));
    null_handles(store);
    lengths_and_keys(store);
    c10d_store_free(store);
    options();
    nested_prefixes();
    CHECK(strcmp(c10d_status_name(2), "C10D_ERROR_TIMEOUT") == 0);
    CHECK(strcmp(c10d_status_name(-1), "unknown") == 0);
    CHECK(strncmp(c10d_version(), "0.", 2) == 0);
    printf("arguments: ok\n");
    return 0;
}
