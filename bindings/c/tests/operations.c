/* Every operation, on every kind of store. */
#include "check.h"

#include <unistd.h>

#define LONG_BYTES ((size_t)8 << 20)

static void values(c10d_store *store) {
    c10d_buffer value;
    bool found = true;
    OK(c10d_store_set(store, S("a"), S("1")));
    OK(c10d_store_get(store, S("a"), C10D_DEFAULT, NULL, &value));
    HOLDS(value, "1");
    OK(c10d_store_try_get(store, S("missing"), &found, &value));
    CHECK(!found && value.data == NULL && value.len == 0);
    c10d_buffer_free(&value);
    OK(c10d_store_try_get(store, S("a"), &found, &value));
    CHECK(found);
    HOLDS(value, "1");

    /* An empty value is present, and its pointer is not null. */
    OK(c10d_store_set(store, S("empty"), NULL, 0));
    OK(c10d_store_try_get(store, S("empty"), &found, &value));
    CHECK(found && value.len == 0 && value.data != NULL);
    c10d_buffer_free(&value);
    c10d_buffer_free(&value);

    /* Any bytes, NUL included. */
    OK(c10d_store_set(store, S("binary"), S("\0\xff\n\0")));
    OK(c10d_store_get(store, S("binary"), 0, NULL, &value));
    CHECK(value.len == 4 && memcmp(value.data, "\0\xff\n\0", 4) == 0);
    c10d_buffer_free(&value);

    OK(c10d_store_append(store, S("log"), S("ab")));
    OK(c10d_store_append(store, S("log"), S("")));
    OK(c10d_store_append(store, S("log"), S("c")));
    OK(c10d_store_get(store, S("log"), 0, NULL, &value));
    HOLDS(value, "abc");

    bool existed = false;
    OK(c10d_store_delete_key(store, S("log"), &existed));
    CHECK(existed);
    OK(c10d_store_delete_key(store, S("empty"), NULL));
}

static void numbers(c10d_store *store) {
    int64_t sum = -1;
    OK(c10d_store_add(store, S("count"), 2, &sum));
    CHECK(sum == 2);
    OK(c10d_store_add(store, S("count"), -5, &sum));
    CHECK(sum == -3);
    OK(c10d_store_add(store, S("count"), 3, NULL));
    OK(c10d_store_set(store, S("word"), S("seven")));
    RETURNS(C10D_ERROR_NOT_A_NUMBER, c10d_store_add(store, S("word"), 1, &sum));
    CHECK(sum == 0);
    SAYS("word");
    CHECK(c10d_last_outcome() == C10D_OUTCOME_NOT_SENT);
}

static void compare_set(c10d_store *store) {
    c10d_buffer value;
    c10d_swapped swapped;
    OK(c10d_store_compare_set(store, S("leader"), NULL, 0, S("one"), &swapped, &value));
    CHECK(swapped == C10D_SWAPPED_YES);
    HOLDS(value, "one");
    OK(c10d_store_compare_set(store, S("leader"), NULL, 0, S("two"), &swapped, &value));
    CHECK(swapped == C10D_SWAPPED_NO);
    HOLDS(value, "one");
    OK(c10d_store_compare_set(store, S("leader"), S("one"), S("two"), NULL, NULL));
    OK(c10d_store_get(store, S("leader"), 0, NULL, &value));
    HOLDS(value, "two");
}

static void lists(c10d_store *store) {
    c10d_bytes keys[3] = {bytes_of("k0"), bytes_of("k1"), bytes_of("k2")};
    c10d_bytes contents[3] = {bytes_of("v0"), {NULL, 0}, bytes_of("v2")};
    bool all = true;
    OK(c10d_store_check(store, keys, 3, &all));
    CHECK(!all);
    OK(c10d_store_check(store, NULL, 0, &all));
    CHECK(all);
    RETURNS(C10D_ERROR_TIMEOUT, c10d_store_wait(store, keys, 3, C10D_CHECK_ONCE, NULL));
    OK(c10d_store_multi_set(store, keys, contents, 3));
    OK(c10d_store_check(store, keys, 3, &all));
    CHECK(all);
    OK(c10d_store_wait(store, keys, 3, C10D_FOREVER, NULL));
    OK(c10d_store_wait(store, NULL, 0, 0, NULL));
    c10d_buffer_list values;
    OK(c10d_store_multi_get(store, keys, 3, 1000, NULL, &values));
    CHECK(values.len == 3);
    CHECK(values.items[0].len == 2 && memcmp(values.items[0].data, "v0", 2) == 0);
    CHECK(values.items[1].len == 0);
    CHECK(values.items[2].len == 2 && memcmp(values.items[2].data, "v2", 2) == 0);
    c10d_buffer_list_free(&values);
    CHECK(values.items == NULL && values.len == 0);
    c10d_buffer_list_free(&values);
    OK(c10d_store_multi_get(store, NULL, 0, 0, NULL, &values));
    CHECK(values.len == 0);
    c10d_buffer_list_free(&values);
    OK(c10d_store_multi_set(store, NULL, NULL, 0));

    uint64_t count = 0;
    OK(c10d_store_num_keys(store, &count));
    CHECK(count >= 3);
    c10d_buffer_list all_keys;
    OK(c10d_store_list_keys(store, &all_keys));
    size_t seen = 0;
    for (size_t i = 0; i < all_keys.len; i++) {
        const c10d_buffer *key = &all_keys.items[i];
        if (key->len == 2 && key->data[0] == 'k') seen++;
    }
    CHECK(seen == 3);
    c10d_buffer_list_free(&all_keys);
}

/* Every byte as a key, in places where it is no text, and what looks like the text of such a byte. */
static void binary_keys(c10d_store *store) {
    const char lookalike[] = "\xf4\x8f\xbf\xbf";
    enum { COUNT = 257 };
    char names[COUNT][5];
    c10d_bytes keys[COUNT];
    for (int i = 0; i < COUNT; i++) {
        memcpy(names[i], "\xc3\0?/", 5);
        names[i][2] = (char)i;
        if (i == 256) memcpy(names[i], lookalike, 4);
        keys[i] = (c10d_bytes){names[i], 4};
        int64_t sum;
        OK(c10d_store_add(store, names[i], 4, i + 1000, &sum));
        CHECK(sum == i + 1000);
    }
    bool all = false;
    OK(c10d_store_check(store, keys, COUNT, &all));
    CHECK(all);
    OK(c10d_store_wait(store, keys, COUNT, C10D_FOREVER, NULL));
    c10d_buffer_list found;
    OK(c10d_store_multi_get(store, keys, COUNT, 1000, NULL, &found));
    CHECK(found.len == COUNT && memcmp(found.items[255].data, "1255", 4) == 0);
    c10d_buffer_list_free(&found);
    OK(c10d_store_list_keys(store, &found));
    int seen[COUNT] = {0};
    for (size_t i = 0; i < found.len; i++) {
        for (int j = 0; j < COUNT; j++) {
            if (found.items[i].len == 4 && memcmp(found.items[i].data, names[j], 4) == 0) seen[j]++;
        }
    }
    c10d_buffer_list_free(&found);
    for (int i = 0; i < COUNT; i++) CHECK(seen[i] == 1);
    for (int i = 0; i < COUNT; i++) {
        bool existed = false;
        OK(c10d_store_delete_key(store, names[i], 4, &existed));
        CHECK(existed);
    }
}

static void queues(c10d_store *store) {
    c10d_buffer value;
    c10d_buffer_list values;
    bool found = true;
    uint64_t count = 7;
    OK(c10d_store_queue_len(store, S("jobs"), &count));
    CHECK(count == 0);
    OK(c10d_store_try_queue_pop(store, S("jobs"), &found, &value));
    CHECK(!found);
    RETURNS(C10D_ERROR_TIMEOUT, c10d_store_queue_pop(store, S("jobs"), C10D_CHECK_ONCE, NULL, &value));
    SAYS("jobs\" at ");
    RETURNS(C10D_ERROR_TIMEOUT, c10d_store_queue_pop(store, S("jobs"), 1, NULL, &value));
    OK(c10d_store_queue_take(store, S("jobs"), 5, C10D_CHECK_ONCE, NULL, &values));
    CHECK(values.len == 0);
    for (int i = 0; i < 5; i++) {
        char element = (char)('a' + i);
        OK(c10d_store_queue_push(store, S("jobs"), &element, 1));
    }
    OK(c10d_store_queue_len(store, S("jobs"), &count));
    CHECK(count == 5);
    OK(c10d_store_try_queue_pop(store, S("jobs"), &found, &value));
    CHECK(found);
    HOLDS(value, "a");
    OK(c10d_store_queue_pop(store, S("jobs"), C10D_DEFAULT, NULL, &value));
    HOLDS(value, "b");
    OK(c10d_store_queue_take(store, S("jobs"), 10, 1000, NULL, &values));
    CHECK(values.len == 3 && values.items[2].data[0] == 'e');
    c10d_buffer_list_free(&values);
    REFUSES("", c10d_store_queue_take(store, S("jobs"), 0, 1000, NULL, &values));
}

static void changes(c10d_store *store) {
    c10d_buffer value;
    OK(c10d_store_set(store, S("state"), S("1")));
    OK(c10d_store_wait_change(store, S("state"), NULL, 0, 0, NULL, &value));
    HOLDS(value, "1");
    RETURNS(C10D_ERROR_TIMEOUT, c10d_store_wait_change(store, S("state"), S("1"), 1, NULL, &value));
    CHECK(value.data == NULL);
    OK(c10d_store_wait_change(store, S("state"), S("0"), C10D_FOREVER, NULL, &value));
    HOLDS(value, "1");
    /* Known as empty is not the same as unknown. */
    OK(c10d_store_set(store, S("state"), S("")));
    RETURNS(C10D_ERROR_TIMEOUT, c10d_store_wait_change(store, S("state"), "", 0, 1, NULL, &value));
}

static void barriers(c10d_store *store) {
    OK(c10d_store_barrier(store, S("alone"), 1, 1000, NULL));
    RETURNS(C10D_ERROR_TIMEOUT, c10d_store_barrier(store, S("lonely"), 2, 1, NULL));
    SAYS("of 2 workers");
    CHECK(c10d_last_outcome() == C10D_OUTCOME_UNKNOWN);

    /* Arrivals are counted at the key or, by stores without a command for it, below the key. */
    OK(c10d_store_set(store, S("taken"), S("seven")));
    OK(c10d_store_set(store, S("taken/num_members"), S("seven")));
    RETURNS(C10D_ERROR_NOT_A_NUMBER, c10d_store_barrier(store, S("taken"), 2, 1000, NULL));
    SAYS("taken");
    CHECK(c10d_last_outcome() == C10D_OUTCOME_NOT_SENT);
    OK(c10d_store_barrier(store, S("free"), 1, 1000, NULL));
}

static void timeouts(c10d_store *store) {
    c10d_buffer value;
    int64_t before = 0;
    int64_t now = 0;
    OK(c10d_store_timeout(store, &before));
    OK(c10d_store_set_timeout(store, 20));
    OK(c10d_store_timeout(store, &now));
    CHECK(now == 20);
    RETURNS(C10D_ERROR_TIMEOUT, c10d_store_get(store, S("missing"), C10D_DEFAULT, NULL, &value));
    SAYS("0.020s");
    OK(c10d_store_set_timeout(store, C10D_FOREVER));
    OK(c10d_store_timeout(store, &now));
    CHECK(now == C10D_FOREVER);
    REFUSES("C10D_DEFAULT", c10d_store_set_timeout(store, C10D_DEFAULT));
    REFUSES("-7 ms", c10d_store_get(store, S("missing"), -7, NULL, &value));
    OK(c10d_store_set_timeout(store, before));
}

static void long_values(c10d_store *store) {
    char *long_value = malloc(LONG_BYTES + 1);
    CHECK(long_value != NULL);
    for (size_t i = 0; i <= LONG_BYTES; i++) long_value[i] = (char)(i * 31 >> 3);
    c10d_buffer value;
    OK(c10d_store_set(store, S("long"), long_value, LONG_BYTES));
    OK(c10d_store_get(store, S("long"), C10D_DEFAULT, NULL, &value));
    CHECK(value.len == LONG_BYTES && memcmp(value.data, long_value, LONG_BYTES) == 0);
    c10d_buffer_free(&value);
    OK(c10d_store_delete_key(store, S("long"), NULL));
    free(long_value);
}

static void limits(c10d_store *store) {
    char *long_value = calloc(LONG_BYTES + 1, 1);
    RETURNS(C10D_ERROR_LIMIT, c10d_store_set(store, S("long"), long_value, LONG_BYTES + 1));
    SAYS("8388609");
    OK(c10d_store_set(store, S("still"), S("usable")));
    free(long_value);
}

/* A key beyond the limit is not read: there are not as many bytes behind the pointer. */
static void long_keys(c10d_store *store) {
    const c10d_bytes key = {"k", (size_t)1 << 30};
    bool found;
    c10d_buffer value;
    RETURNS(C10D_ERROR_LIMIT, c10d_store_set(store, "k", (size_t)1 << 30, S("x")));
    SAYS("1073741824 bytes: at most 8192");
    RETURNS(C10D_ERROR_LIMIT, c10d_store_try_get(store, "k", 8193, &found, &value));
    RETURNS(C10D_ERROR_LIMIT, c10d_store_wait(store, &key, 1, C10D_CHECK_ONCE, NULL));
    c10d_store *prefixed;
    RETURNS(C10D_ERROR_LIMIT, c10d_store_open_prefix(store, "k", (size_t)1 << 30, &prefixed));
    OK(c10d_store_set(store, S("still"), S("usable")));
}

static void everything(c10d_store *store, bool has_queues) {
    values(store);
    numbers(store);
    compare_set(store);
    lists(store);
    binary_keys(store);
    if (has_queues) {
        queues(store);
    } else {
        RETURNS(C10D_ERROR_UNSUPPORTED, c10d_store_queue_push(store, S("jobs"), S("x")));
    }
    changes(store);
    barriers(store);
    timeouts(store);
    long_values(store);
    long_keys(store);
    OK(c10d_store_set(store, NULL, 0, S("the key may be empty")));
}

static void only_of_tcp(c10d_store *store, bool is_tcp) {
    uint16_t port = 7;
    uint64_t nanoseconds = 0;
    c10d_status expected = is_tcp ? C10D_OK : C10D_ERROR_UNSUPPORTED;
    RETURNS(expected, c10d_store_port(store, &port));
    RETURNS(expected, c10d_store_ping(store, &nanoseconds));
    CHECK(is_tcp ? port != 0 && nanoseconds > 0 : port == 0);
}

/* Keys end with their handle; prefixes can be deleted. */
static void ends(c10d_store *store, uint16_t port) {
    c10d_store *owner;
    c10d_buffer value;
    bool flag = false;
    uint64_t count = 7;
    OK(c10d_store_connect("127.0.0.1", port, NULL, &owner));
    OK(c10d_store_set_ephemeral(owner, S("lock"), S("mine"), S("left"), S("dead"), &flag, &value));
    CHECK(flag && value.data == NULL);
    OK(c10d_store_set_ephemeral(store, S("lock"), S("other"), NULL, 0, NULL, 0, &flag, &value));
    CHECK(!flag);
    HOLDS(value, "mine");
    OK(c10d_store_keep_alive(owner, C10D_FOREVER, &flag));
    CHECK(flag);
    OK(c10d_store_keep_alive(owner, 60000, &flag));
    CHECK(flag);
    REFUSES("C10D_DEFAULT", c10d_store_keep_alive(owner, C10D_DEFAULT, &flag));
    CHECK(!flag);
    c10d_store_free(owner);
    OK(c10d_store_get(store, S("left"), 60000, NULL, &value));
    HOLDS(value, "dead");
    OK(c10d_store_set_ephemeral(store, S("lock"), S("other"), NULL, 0, NULL, 0, &flag, &value));
    CHECK(flag);

    OK(c10d_store_set(store, S("round/1"), S("")));
    OK(c10d_store_queue_push(store, S("round/2"), S("")));
    OK(c10d_store_delete_prefix(store, S("round/"), 0, &count));
    CHECK(count == 2);
    OK(c10d_store_delete_prefix(store, S("round/"), 3600000, NULL));
    OK(c10d_store_end_waits(store, S("round/"), &count));
    CHECK(count == 0);
    REFUSES("prefix", c10d_store_delete_prefix(store, NULL, 0, 0, &count));
    CHECK(count == 0);
}

/* The names of these functions, for stores that have none of it. */
static void only_of_c10d(c10d_store *store) {
    c10d_buffer value;
    bool flag = true;
    uint64_t count = 7;
    RETURNS(C10D_ERROR_UNSUPPORTED,
            c10d_store_set_ephemeral(store, S("lock"), S("mine"), NULL, 0, NULL, 0, &flag, &value));
    CHECK(!flag && value.data == NULL);
    RETURNS(C10D_ERROR_UNSUPPORTED, c10d_store_keep_alive(store, 1000, &flag));
    RETURNS(C10D_ERROR_UNSUPPORTED, c10d_store_end_waits(store, S("round/"), &count));
    RETURNS(C10D_ERROR_UNSUPPORTED, c10d_store_delete_prefix(store, S("round/"), 0, NULL));
    CHECK(count == 0);
}

int main(void) {
    c10d_store *store;
    c10d_store *prefixed;
    c10d_store *clone;
    c10d_buffer value;
    CHECK(strcmp(c10d_last_error(), "") == 0);

    OK(c10d_store_open_hash(NULL, &store));
    everything(store, true);
    only_of_tcp(store, false);
    only_of_c10d(store);
    OK(c10d_store_open_prefix(store, S("below\xff"), &prefixed));
    everything(prefixed, true);
    OK(c10d_store_get(store, S("below\xff/a"), 0, NULL, &value));
    HOLDS(value, "1");
    c10d_store_free(store);
    OK(c10d_store_set(prefixed, S("after"), S("the handle of the other was freed")));
    OK(c10d_store_clone(prefixed, &clone));
    c10d_store_free(prefixed);
    OK(c10d_store_get(clone, S("a"), 0, NULL, &value));
    HOLDS(value, "1");
    c10d_store_free(clone);

    OK(c10d_store_open_master("127.0.0.1", 0, NULL, &store));
    everything(store, true);
    limits(store);
    only_of_tcp(store, true);
    uint16_t port = 0;
    OK(c10d_store_port(store, &port));
    ends(store, port);
    c10d_store *client;
    OK(c10d_store_connect("127.0.0.1", port, NULL, &client));
    OK(c10d_store_get(client, S("a"), 0, NULL, &value));
    HOLDS(value, "1");
    OK(c10d_store_label(client, &value));
    CHECK(value.len > 10 && memcmp(value.data, "TCP store 127.0.0.1:", 20) == 0);
    c10d_buffer_free(&value);
    OK(c10d_store_open_prefix(client, S("deeper"), &prefixed));
    only_of_tcp(prefixed, true);
    everything(prefixed, true);
    OK(c10d_store_clone(client, &clone));
    OK(c10d_store_get(clone, S("a"), 0, NULL, &value));
    HOLDS(value, "1");

    /* A closed handle stays closed, and its clone continues. */
    OK(c10d_store_close(client));
    OK(c10d_store_close(client));
    RETURNS(C10D_ERROR_CLOSED, c10d_store_set(prefixed, S("a"), S("2")));
    OK(c10d_store_get(clone, S("a"), 0, NULL, &value));
    HOLDS(value, "1");

    /* The server ends with its handle. */
    c10d_store_free(store);
    RETURNS(C10D_ERROR_CONNECTION_LOST, c10d_store_add(clone, S("count"), 1, NULL));
    c10d_store_free(clone);
    c10d_store_free(prefixed);
    c10d_store_free(client);

    char folder[] = "/tmp/c10d-c-XXXXXX";
    char path[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/store", folder);
    OK(c10d_store_open_file(path, NULL, &store));
    everything(store, false);
    only_of_tcp(store, false);
    c10d_store_free(store);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fputs("no store, but a text of some length", file) >= 0 && fclose(file) == 0);
    RETURNS(C10D_ERROR_CORRUPT_FILE, c10d_store_open_file(path, NULL, &store));
    CHECK(store == NULL);
    CHECK(unlink(path) == 0 && rmdir(folder) == 0);
    RETURNS(C10D_ERROR_FILE, c10d_store_open_file("/nonexistent/folder/store", NULL, &store));

    printf("operations: ok\n");
    return 0;
}
