// What was released: c10d.h must still declare the same functions, values and structures. A compiler refuses a declaration that
// differs from the one before. A release appends what it adds, and changes nothing above.
#include "c10d.h"

#define SAME(value, released) _Static_assert((value) == (released), #value " has changed")

// 0.2
SAME(C10D_OUTCOME_NOT_SENT, 0);
SAME(C10D_OUTCOME_UNKNOWN, 1);
SAME(C10D_OK, 0);
SAME(C10D_ERROR_INVALID_ARGUMENT, 1);
SAME(C10D_ERROR_TIMEOUT, 2);
SAME(C10D_ERROR_INTERRUPTED, 3);
SAME(C10D_ERROR_CLOSED, 4);
SAME(C10D_ERROR_CONNECT, 5);
SAME(C10D_ERROR_CONNECTION_LOST, 6);
SAME(C10D_ERROR_NO_REPLY, 7);
SAME(C10D_ERROR_PROTOCOL, 8);
SAME(C10D_ERROR_LIMIT, 9);
SAME(C10D_ERROR_NOT_A_NUMBER, 10);
SAME(C10D_ERROR_UNSUPPORTED, 11);
SAME(C10D_ERROR_SERVER, 12);
SAME(C10D_ERROR_CREDENTIALS, 13);
SAME(C10D_ERROR_FILE, 14);
SAME(C10D_ERROR_CORRUPT_FILE, 15);
SAME(C10D_ERROR_MISSING_RANKS, 16);
SAME(C10D_ERROR_ENVIRONMENT, 17);
SAME(C10D_ERROR_MISMATCH, 18);
SAME(C10D_ERROR_BROKEN, 19);
SAME(C10D_ERROR_TAKEN, 20);
SAME(C10D_ERROR_OUT_OF_STEP, 21);
SAME(C10D_ERROR_FORKED, 22);
SAME(C10D_ERROR_JOURNAL, 23);
SAME(C10D_ERROR_WAIT_ENDED, 24);
SAME(C10D_ERROR_OTHER, 98);
SAME(C10D_ERROR_PANIC, 99);
SAME(C10D_SWAPPED_NO, 0);
SAME(C10D_SWAPPED_YES, 1);
SAME(C10D_SWAPPED_UNKNOWN, 2);
SAME(C10D_LOG_NOTHING, 0);
SAME(C10D_LOG_WARNINGS, 2);
SAME(C10D_LOG_PROGRESS, 3);
SAME(C10D_LOG_DEBUG, 4);
SAME(C10D_FOREVER, -1);
SAME(C10D_CHECK_ONCE, 0);
SAME(C10D_DEFAULT, -2);
SAME(sizeof(c10d_buffer), 2 * sizeof(void *));
SAME(offsetof(c10d_buffer, data), 0);
SAME(offsetof(c10d_buffer, len), sizeof(void *));
SAME(sizeof(c10d_buffer_list), 2 * sizeof(void *));
SAME(offsetof(c10d_buffer_list, items), 0);
SAME(offsetof(c10d_buffer_list, len), sizeof(void *));
SAME(sizeof(c10d_bytes), 2 * sizeof(void *));
SAME(offsetof(c10d_bytes, data), 0);
SAME(offsetof(c10d_bytes, len), sizeof(void *));
const char *c10d_last_error(void);
enum c10d_outcome c10d_last_outcome(void);
const size_t *c10d_last_missing_ranks(size_t *count);
const char *c10d_status_name(int32_t status);
enum c10d_status c10d_log_to_stderr(int32_t level);
void c10d_buffer_free(struct c10d_buffer *buffer);
void c10d_buffer_list_free(struct c10d_buffer_list *list);
enum c10d_status c10d_options_new(struct c10d_options **options);
void c10d_options_free(struct c10d_options *options);
enum c10d_status c10d_options_set_timeout(struct c10d_options *options, int64_t timeout_ms);
enum c10d_status c10d_options_set_world_size(struct c10d_options *options, size_t world_size);
enum c10d_status c10d_options_set_wait_for_workers(struct c10d_options *options, bool wait_for_workers);
enum c10d_status c10d_options_set_multi_tenant(struct c10d_options *options, bool multi_tenant);
enum c10d_status c10d_options_set_listen_address(struct c10d_options *options, const char *address);
enum c10d_status c10d_options_set_resume(struct c10d_options *options, uint64_t resume_ms);
enum c10d_status c10d_options_set_secret_file(struct c10d_options *options, const char *path);
enum c10d_status c10d_options_set_key_bytes_max(struct c10d_options *options, size_t bytes);
enum c10d_status c10d_options_set_value_bytes_max(struct c10d_options *options, size_t bytes);
enum c10d_status c10d_options_set_connections_max(struct c10d_options *options, size_t connections);
enum c10d_status c10d_options_set_directory(struct c10d_options *options, const char *path);
enum c10d_status c10d_options_set_cancel(struct c10d_options *options, const struct c10d_cancel *cancel);
enum c10d_status c10d_store_connect(const char *host, uint16_t port, const struct c10d_options *options, struct
    c10d_store **store);
enum c10d_status c10d_store_open_master(const char *host, uint16_t port, const struct c10d_options *options, struct
    c10d_store **store);
enum c10d_status c10d_store_open_file(const char *path, const struct c10d_options *options, struct c10d_store
    **store);
enum c10d_status c10d_store_open_hash(const struct c10d_options *options, struct c10d_store **store);
enum c10d_status c10d_store_open_prefix(const struct c10d_store *underlying, const char *prefix, size_t prefix_len,
    struct c10d_store **store);
enum c10d_status c10d_store_clone(const struct c10d_store *original, struct c10d_store **store);
enum c10d_status c10d_store_close(const struct c10d_store *store);
void c10d_store_free(struct c10d_store *store);
enum c10d_status c10d_store_port(const struct c10d_store *store, uint16_t *port);
enum c10d_status c10d_store_ping(const struct c10d_store *store, uint64_t *nanoseconds);
enum c10d_status c10d_store_label(const struct c10d_store *store, struct c10d_buffer *label);
enum c10d_status c10d_store_timeout(const struct c10d_store *store, int64_t *timeout_ms);
enum c10d_status c10d_store_set_timeout(const struct c10d_store *store, int64_t timeout_ms);
enum c10d_status c10d_store_set(const struct c10d_store *store, const char *key, size_t key_len, const void *value,
    size_t value_len);
enum c10d_status c10d_store_try_get(const struct c10d_store *store, const char *key, size_t key_len, bool *found,
    struct c10d_buffer *value);
enum c10d_status c10d_store_add(const struct c10d_store *store, const char *key, size_t key_len, int64_t delta,
    int64_t *sum);
enum c10d_status c10d_store_compare_set(const struct c10d_store *store, const char *key, size_t key_len, const void
    *expected, size_t expected_len, const void *desired, size_t desired_len, enum c10d_swapped *swapped, struct
    c10d_buffer *value);
enum c10d_status c10d_store_check(const struct c10d_store *store, const struct c10d_bytes *keys, size_t key_count,
    bool *all_exist);
enum c10d_status c10d_store_delete_key(const struct c10d_store *store, const char *key, size_t key_len, bool
    *existed);
enum c10d_status c10d_store_num_keys(const struct c10d_store *store, uint64_t *count);
enum c10d_status c10d_store_list_keys(const struct c10d_store *store, struct c10d_buffer_list *keys);
enum c10d_status c10d_store_append(const struct c10d_store *store, const char *key, size_t key_len, const void *value,
    size_t value_len);
enum c10d_status c10d_store_multi_set(const struct c10d_store *store, const struct c10d_bytes *keys, const struct
    c10d_bytes *values, size_t count);
enum c10d_status c10d_store_queue_push(const struct c10d_store *store, const char *key, size_t key_len, const void
    *value, size_t value_len);
enum c10d_status c10d_store_try_queue_pop(const struct c10d_store *store, const char *key, size_t key_len, bool
    *found, struct c10d_buffer *value);
enum c10d_status c10d_store_queue_len(const struct c10d_store *store, const char *key, size_t key_len, uint64_t
    *count);
enum c10d_status c10d_store_get(const struct c10d_store *store, const char *key, size_t key_len, int64_t timeout_ms,
    const struct c10d_cancel *cancel, struct c10d_buffer *value);
enum c10d_status c10d_store_wait(const struct c10d_store *store, const struct c10d_bytes *keys, size_t key_count,
    int64_t timeout_ms, const struct c10d_cancel *cancel);
enum c10d_status c10d_store_wait_change(const struct c10d_store *store, const char *key, size_t key_len, const void
    *known, size_t known_len, int64_t timeout_ms, const struct c10d_cancel *cancel, struct c10d_buffer *value);
enum c10d_status c10d_store_multi_get(const struct c10d_store *store, const struct c10d_bytes *keys, size_t key_count,
    int64_t timeout_ms, const struct c10d_cancel *cancel, struct c10d_buffer_list *values);
enum c10d_status c10d_store_queue_pop(const struct c10d_store *store, const char *key, size_t key_len, int64_t
    timeout_ms, const struct c10d_cancel *cancel, struct c10d_buffer *value);
enum c10d_status c10d_store_queue_take(const struct c10d_store *store, const char *key, size_t key_len, size_t max,
    int64_t timeout_ms, const struct c10d_cancel *cancel, struct c10d_buffer_list *values);
enum c10d_status c10d_store_barrier(const struct c10d_store *store, const char *key, size_t key_len, size_t
    world_size, int64_t timeout_ms, const struct c10d_cancel *cancel);
enum c10d_status c10d_store_set_ephemeral(const struct c10d_store *store, const char *key, size_t key_len, const void
    *value, size_t value_len, const char *will_key, size_t will_key_len, const void *will_value, size_t
    will_value_len, bool *owned, struct c10d_buffer *present);
enum c10d_status c10d_store_keep_alive(const struct c10d_store *store, int64_t silence_max_ms, bool *kept);
enum c10d_status c10d_store_end_waits(const struct c10d_store *store, const char *prefix, size_t prefix_len, uint64_t
    *count);
enum c10d_status c10d_store_delete_prefix(const struct c10d_store *store, const char *prefix, size_t prefix_len,
    uint64_t delay_ms, uint64_t *count);
enum c10d_status c10d_cancel_new(struct c10d_cancel **cancel);
enum c10d_status c10d_cancel_now(const struct c10d_cancel *cancel);
enum c10d_status c10d_cancel_reset(const struct c10d_cancel *cancel);
void c10d_cancel_free(struct c10d_cancel *cancel);
enum c10d_status c10d_server_start(const char *host, uint16_t port, const struct c10d_options *options, struct
    c10d_server **server);
enum c10d_status c10d_server_port(const struct c10d_server *server, uint16_t *port);
enum c10d_status c10d_server_connection_count(const struct c10d_server *server, size_t *count);
enum c10d_status c10d_server_check(const struct c10d_server *server);
enum c10d_status c10d_server_stop(const struct c10d_server *server);
void c10d_server_free(struct c10d_server *server);
enum c10d_status c10d_env_rank(size_t *rank);
enum c10d_status c10d_env_world_size(size_t *world_size);
enum c10d_status c10d_env_local_rank(size_t *local_rank);
enum c10d_status c10d_env_local_world_size(size_t *local_world_size);
enum c10d_status c10d_group_init_from_env(const char *name, const struct c10d_options *options, struct c10d_group
    **group);
enum c10d_status c10d_group_join(const char *name, const struct c10d_store *store, size_t rank, size_t world_size,
    const struct c10d_options *options, struct c10d_group **group);
enum c10d_status c10d_group_split(const struct c10d_group *parent, const char *name, const size_t *ranks, size_t
    rank_count, int64_t timeout_ms, const struct c10d_cancel *cancel, struct c10d_group **group);
enum c10d_status c10d_group_rank(const struct c10d_group *group, size_t *rank);
enum c10d_status c10d_group_world_size(const struct c10d_group *group, size_t *world_size);
enum c10d_status c10d_group_store(const struct c10d_group *group, struct c10d_store **store);
enum c10d_status c10d_group_broadcast(const struct c10d_group *group, size_t root, void *value, size_t len, int64_t
    timeout_ms, const struct c10d_cancel *cancel);
enum c10d_status c10d_group_broadcast_any(const struct c10d_group *group, size_t root, const void *value, size_t len,
    int64_t timeout_ms, const struct c10d_cancel *cancel, struct c10d_buffer *received);
enum c10d_status c10d_group_barrier(const struct c10d_group *group, int64_t timeout_ms, const struct c10d_cancel
    *cancel);
enum c10d_status c10d_group_all_gather(const struct c10d_group *group, const void *value, size_t len, int64_t
    timeout_ms, const struct c10d_cancel *cancel, struct c10d_buffer_list *values);
enum c10d_status c10d_group_finish(const struct c10d_group *group, const struct c10d_cancel *cancel);
void c10d_group_free(struct c10d_group *group);
const char *c10d_version(void);
