// c10d.h: the TCPStore of PyTorch's torch.distributed, and groups of ranks, for C and C++.
//
// Made from the sources by cbindgen: `make -C bindings/c header`.
//
// Results. Functions return a c10d_status; c10d_last_error() has the text of this thread's last failure. Results are
// written through the last parameters, which are empty or zero after a failure, so that they can always be freed.
// Result parameters must not overlap each other. A pointer must not be null, unless its comment says so.
//
// Bytes. Keys and values are a pointer and a length; the pointer may be null if the length is 0. The library copies
// what it keeps. Both are any bytes. Host names, paths and names of groups are UTF-8 and end with a NUL byte.
//
// Memory. Free a c10d_buffer and a c10d_buffer_list with their functions, and each handle with its own, once. The
// library cannot notice the use of a freed handle.
//
// Threads. Any number of threads may call functions on one handle at a time, except c10d_options. Before a handle is
// freed, the calls on it must have returned: c10d_store_close and c10d_cancel_now end those that wait.
//
// Time. Calls that wait take milliseconds, C10D_FOREVER, C10D_CHECK_ONCE or C10D_DEFAULT. All others are limited by
// the timeout of the store; a server that does not answer is given 250 ms at least.
//
// Processes. Threads and connections do not survive a fork: in the child, the parent's stores, servers and groups
// return C10D_ERROR_FORKED, and freeing them does not touch the parent's. Open others in the child.

#ifndef C10D_H
#define C10D_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A log level: nothing, the default.
#define C10D_LOG_NOTHING 0

// A log level: also what the library could not do.
#define C10D_LOG_WARNINGS 2

// A log level: also the progress of what takes long, such as a connect to a server that has not started.
#define C10D_LOG_PROGRESS 3

// A log level: also each connection and retry.
#define C10D_LOG_DEBUG 4

// A time limit: the call waits until it succeeds.
#define C10D_FOREVER -1

// A time limit: the call checks once, without waiting.
#define C10D_CHECK_ONCE 0

// A time limit: the default timeout of the store.
#define C10D_DEFAULT -2

// Whether a failed call can have taken effect.
typedef enum c10d_outcome {
    // The request was not sent, and the store is unchanged: a retry is safe.
    C10D_OUTCOME_NOT_SENT = 0,
    // The request may have been carried out: a retry of `add`, say, may count twice.
    C10D_OUTCOME_UNKNOWN = 1,
} c10d_outcome;

// The result of a call. Values never change; later versions may add some.
typedef enum c10d_status {
    // The call succeeded.
    C10D_OK = 0,
    // An argument is invalid: null, a host name that is not UTF-8, a negative time. The request was not sent.
    C10D_ERROR_INVALID_ARGUMENT = 1,
    // The key, the element or the ranks did not appear in time. The handle stays usable, and the call can be
    // repeated, except an arrival at a barrier, which stays counted.
    C10D_ERROR_TIMEOUT = 2,
    // A `c10d_cancel` ended the call. The store stays usable.
    C10D_ERROR_INTERRUPTED = 3,
    // This process closed the handle.
    C10D_ERROR_CLOSED = 4,
    // The server could not be reached. The request was not sent.
    C10D_ERROR_CONNECT = 5,
    // The connection was lost: `c10d_last_outcome` tells whether the request can have taken effect. The handle stays
    // unusable.
    C10D_ERROR_CONNECTION_LOST = 6,
    // The server did not answer in time: it is stopped, hangs or is cut off. The request can have taken effect.
    C10D_ERROR_NO_REPLY = 7,
    // The peer does not speak TCPStore's protocol, or speaks another version of it.
    C10D_ERROR_PROTOCOL = 8,
    // A key, a value or a list exceeds a limit. The request was not sent.
    C10D_ERROR_LIMIT = 9,
    // The value is not a decimal number. Nothing changed.
    C10D_ERROR_NOT_A_NUMBER = 10,
    // The store, or this build of the library, does not support the operation. Nothing changed.
    C10D_ERROR_UNSUPPORTED = 11,
    // The server could not be started: the port is in use, or the machine does not have the address.
    C10D_ERROR_SERVER = 12,
    // A secret cannot be used.
    C10D_ERROR_CREDENTIALS = 13,
    // The file of a file store could not be read or written.
    C10D_ERROR_FILE = 14,
    // The file of a file store contains something else.
    C10D_ERROR_CORRUPT_FILE = 15,
    // Not all ranks joined or arrived in time: `c10d_last_missing_ranks` names the missing ranks if they are known.
    C10D_ERROR_MISSING_RANKS = 16,
    // A launcher's environment variable is missing or is not a number.
    C10D_ERROR_ENVIRONMENT = 17,
    // The ranks of a group do not agree: about the world size, a sub-group, or the length of a value.
    C10D_ERROR_MISMATCH = 18,
    // An earlier call of the group failed, so that this rank may be out of step with the other ranks: join a group
    // with a different name.
    C10D_ERROR_BROKEN = 19,
    // Another process has this rank, or this process has joined a group of this name before.
    C10D_ERROR_TAKEN = 20,
    // Another operation of the group is not complete: another thread carries it out, or it was abandoned after a
    // failure that allows to repeat it.
    C10D_ERROR_OUT_OF_STEP = 21,
    // A forked child used a handle of its parent. The handle is unharmed, and the request was not sent: open a new
    // handle in the child.
    C10D_ERROR_FORKED = 22,
    // The directory of a server is in use, damaged, of a newer version, or cannot be read or written.
    C10D_ERROR_JOURNAL = 23,
    // Another client has ended the waits for names with a prefix, among them this one. The store stays usable.
    C10D_ERROR_WAIT_ENDED = 24,
    // The server has reached its memory limit and has refused a write. Nothing changed, and the store stays usable.
    C10D_ERROR_MEMORY_FULL = 25,
    // A failure that this version of the interface has no number for; see its text.
    C10D_ERROR_OTHER = 98,
    // A bug of the library: it panicked. The handles of the call can still be freed.
    C10D_ERROR_PANIC = 99,
} c10d_status;

// Whether a `c10d_store_compare_set` wrote its value.
typedef enum c10d_swapped {
    // The key had another value than expected.
    C10D_SWAPPED_NO = 0,
    // This call wrote the value.
    C10D_SWAPPED_YES = 1,
    // The key has the desired value: this call wrote it, or it had it before. Only on PyTorch's servers, whose replies
    // do not tell.
    C10D_SWAPPED_UNKNOWN = 2,
} c10d_swapped;

// Ends blocking calls from another thread. Give it to any number of calls, one after the other or at the same time.
typedef struct c10d_cancel c10d_cancel;

// All ranks of a job, or some of them. All do the same operations in the same order, one at a time, and each operation
// returns when all ranks have taken part. After `C10D_ERROR_MISSING_RANKS` and `C10D_ERROR_INTERRUPTED` the same call
// can be repeated: it continues where it was interrupted.
typedef struct c10d_group c10d_group;

// Options for opening a store, starting a server or joining a group. One thread at a time may use such an object.
typedef struct c10d_options c10d_options;

// A TCPStore server for clients of this library, of `c10d` and of PyTorch, which runs in a separate thread. Any number
// of threads of the process that started a server may use it.
typedef struct c10d_server c10d_server;

// A store of the process that opened it. Any number of threads may use one at a time; a call that waits delays no
// other.
typedef struct c10d_store c10d_store;

// Bytes that a function of the library returns. Free them with `c10d_buffer_free`.
typedef struct c10d_buffer {
    // The first byte. Not null after success, even if `len` is 0; null after a failure. No NUL byte follows the last
    // one.
    char *data;
    // The number of bytes.
    size_t len;
} c10d_buffer;

// Buffers that a function of the library returns. Free them with `c10d_buffer_list_free`.
typedef struct c10d_buffer_list {
    // The first buffer; null if `len` is 0. It belongs to the list: free the list, not its buffers.
    struct c10d_buffer *items;
    // The number of buffers.
    size_t len;
} c10d_buffer_list;

// Bytes of the caller: a key of a list, or a value. The library only reads them.
typedef struct c10d_bytes {
    // The first byte. May be null if `len` is 0.
    const void *data;
    // The number of bytes.
    size_t len;
} c10d_bytes;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The error text of the last failed call of this thread: the operation, its object and the cause. Empty if no call
// has failed. A successful call does not change it. Valid until the next failure of this thread, and until the
// thread exits. In destructors that run at the end of a thread, it may be cut after 1023 bytes.
const char *c10d_last_error(void);

// Whether the last failed call of this thread may have taken effect.
enum c10d_outcome c10d_last_outcome(void);

// The missing ranks of the last failed call of this thread, if its status was `C10D_ERROR_MISSING_RANKS`. Returns
// a pointer to the first rank, and writes their number to `count`; null if no rank is known. Valid as long as the
// text.
const size_t *c10d_last_missing_ranks(size_t *count);

// The name of a status, such as `C10D_ERROR_TIMEOUT`; `unknown` for a number that is none.
const char *c10d_status_name(int32_t status);

// The version of the library that runs, such as `0.2.0`.
const char *c10d_version(void);

// Writes the library's log lines of this level and of more severe levels to standard error from now on, in all
// threads: `C10D_LOG_WARNINGS`, `C10D_LOG_PROGRESS`, `C10D_LOG_DEBUG`, or `C10D_LOG_NOTHING`, the default. With
// `C10D_LOG_PROGRESS`, a slow connect reports why it waits.
enum c10d_status c10d_log_to_stderr(int32_t level);

// New options with all defaults. Free them with `c10d_options_free`. Functions that take options take null for the
// defaults, and keep no reference to them.
enum c10d_status c10d_options_new(struct c10d_options **options);

// Frees options. Null is left alone.
void c10d_options_free(struct c10d_options *options);

// The time limit for opening the store or joining the group, and its default timeout. 300 s by default, like in
// PyTorch.
enum c10d_status c10d_options_set_timeout(struct c10d_options *options,
                                          int64_t timeout_ms);

// The number of workers, at least 1. A master then waits until all workers have opened the store. The last of this
// number of closed file stores removes the file. By default workers are not counted.
enum c10d_status c10d_options_set_world_size(struct c10d_options *options,
                                             size_t world_size);

// Whether a master with a world size waits for the other workers while it opens. True by default, like in PyTorch.
enum c10d_status c10d_options_set_wait_for_workers(struct c10d_options *options,
                                                   bool wait_for_workers);

// Whether masters of this process on the same port share one server. False by default, like in PyTorch.
enum c10d_status c10d_options_set_multi_tenant(struct c10d_options *options, bool multi_tenant);

// The address at which a master listens: a literal address, `*` for all interfaces, or null for the addresses of
// the store's host, the default. A plain server listens on the host that it is started with.
enum c10d_status c10d_options_set_listen_address(struct c10d_options *options,
                                                 const char *address);

// How long a TCP store tries to reconnect after it lost its connection, in milliseconds. Each request takes effect
// exactly once. With 0, the default, a lost connection is final, like in PyTorch, whose servers have no sessions.
enum c10d_status c10d_options_set_resume(struct c10d_options *options,
                                         uint64_t resume_ms);

// Connects only to servers, and serves only clients, that have the same secret. The file is written by `c10d
// secret new`, and only its owner may read it. PyTorch's clients and servers do not support secrets.
// `C10D_ERROR_UNSUPPORTED` if the library was built without the feature `tls`.
enum c10d_status c10d_options_set_secret_file(struct c10d_options *options, const char *path);

// The longest key in bytes, including one for the client's prefix. 8192 by default, like in PyTorch. The limit
// applies to every kind of store: a longer key is refused before it is read. A server closes the connection on a
// longer key, so change the limit on both sides.
enum c10d_status c10d_options_set_key_bytes_max(struct c10d_options *options,
                                                size_t bytes);

// The longest value of a store or a group in bytes. 8 MiB by default, like in PyTorch. A server closes the
// connection on a longer value, so change the limit on both sides.
enum c10d_status c10d_options_set_value_bytes_max(struct c10d_options *options, size_t bytes);

// The maximum number of connections of a server at a time; it closes further connections. 262,144 by default.
enum c10d_status c10d_options_set_connections_max(struct c10d_options *options, size_t connections);

// Keeps the store of a server or a master in this directory, and continues with the data in it. A missing
// directory is created for this user only. Only one server can use a directory at a time. Confirmed writes survive
// the server's process. With null, the default, the data is lost when the server stops. If the server cannot
// write, it closes all connections and stops, and `c10d_server_check` reports the reason. `C10D_ERROR_UNSUPPORTED`
// if the library was built without the feature `journal`.
enum c10d_status c10d_options_set_directory(struct c10d_options *options,
                                            const char *path);

// Lets `cancel` interrupt the calls that open a store or join a group with these options; later calls take a
// separate handle. With null, the default, only the timeout interrupts them. The handle may be freed before the
// options.
enum c10d_status c10d_options_set_cancel(struct c10d_options *options,
                                         const struct c10d_cancel *cancel);

// Connects to the TCPStore server at `host`, a name or an address: of this library, of `c10d`, or of PyTorch. Tries
// again until the timeout of the options. `options` may be null.
enum c10d_status c10d_store_connect(const char *host,
                                    uint16_t port,
                                    const struct c10d_options *options,
                                    struct c10d_store **store);

// Starts a TCPStore server in this process, and connects to it. For port 0 the system chooses one:
// `c10d_store_port`. The server runs until this handle and all prefix stores over it are freed. With a world size in
// the options, waits until as many workers have joined. `options` may be null.
enum c10d_status c10d_store_open_master(const char *host,
                                        uint16_t port,
                                        const struct c10d_options *options,
                                        struct c10d_store **store);

// Opens or creates a store in a file that processes share, in the format of PyTorch's FileStore. It has no queues.
// `options` may be null.
enum c10d_status c10d_store_open_file(const char *path,
                                      const struct c10d_options *options,
                                      struct c10d_store **store);

// A new, empty store within this process, for tests and for jobs of one process. `options` may be null.
enum c10d_status c10d_store_open_hash(const struct c10d_options *options, struct c10d_store **store);

// A namespace within another store: the key `k` becomes `prefix/k` there. Shares the other store's connection, default
// timeout and end, and keeps it open: both handles may be freed in any order. At most 100 are around each other.
enum c10d_status c10d_store_open_prefix(const struct c10d_store *underlying,
                                        const char *prefix,
                                        size_t prefix_len,
                                        struct c10d_store **store);

// Opens a second, independent handle to the same store, with a separate connection, which is closed separately. It
// does not keep a master's server running.
enum c10d_status c10d_store_clone(const struct c10d_store *original,
                                  struct c10d_store **store);

// Closes a store: its calls in other threads, and all later calls, fail at once with `C10D_ERROR_CLOSED`. A prefix
// store closes the store that it wraps. Does not block, and does not free memory.
enum c10d_status c10d_store_close(const struct c10d_store *store);

// Frees a store. Calls on the store must have returned, and further calls are not allowed: to stop calls in other
// threads, close the store, then join the threads. Blocks while a master's server stops, which takes microseconds,
// and for a file store until it has the file's lock, at most 5 s. Null is ignored. In a forked child, only the
// memory of the handle is freed.
void c10d_store_free(struct c10d_store *store);

// Gets the port of a TCP store's server. For a master that was opened with port 0, this is the port that the
// system chose. `C10D_ERROR_UNSUPPORTED` for other stores, including clones.
enum c10d_status c10d_store_port(const struct c10d_store *store, uint16_t *port);

// Measures a round trip to the server of a TCP store. Waits at most the store's timeout.
// `C10D_ERROR_UNSUPPORTED` for other stores, clones included.
enum c10d_status c10d_store_ping(const struct c10d_store *store, uint64_t *nanoseconds);

// The store's name in error messages, such as `TCP store 10.0.0.1:29500`. Free it with `c10d_buffer_free`.
enum c10d_status c10d_store_label(const struct c10d_store *store, struct c10d_buffer *label);

// The default timeout, in milliseconds or `C10D_FOREVER`.
enum c10d_status c10d_store_timeout(const struct c10d_store *store, int64_t *timeout_ms);

// Sets the default timeout of later calls: milliseconds, `C10D_CHECK_ONCE` or `C10D_FOREVER`. For a prefix store,
// sets the timeout of the store that it wraps.
enum c10d_status c10d_store_set_timeout(const struct c10d_store *store,
                                        int64_t timeout_ms);

// Frees a buffer and sets it to zero. Null, a buffer of zeros and a freed buffer are ignored. Do not free a copy
// of a freed buffer.
void c10d_buffer_free(struct c10d_buffer *buffer);

// Frees a list and all its buffers, and sets it to zero. Otherwise as `c10d_buffer_free`.
void c10d_buffer_list_free(struct c10d_buffer_list *list);

// Creates the key or replaces its value, and wakes all calls that wait for it. Over TCP a server with a memory limit
// confirms it, or refuses it with `C10D_ERROR_MEMORY_FULL`. A server without a limit sends no reply: a later call on the
// same handle sees the value.
enum c10d_status c10d_store_set(const struct c10d_store *store,
                                const char *key,
                                size_t key_len,
                                const void *value,
                                size_t value_len);

// The value of a key, without waiting for it: `found` is false and the value is empty if the key is missing.
enum c10d_status c10d_store_try_get(const struct c10d_store *store,
                                    const char *key,
                                    size_t key_len,
                                    bool *found,
                                    struct c10d_buffer *value);

// Adds `delta` to the decimal number at the key, and writes the sum to `sum`, which may be null. A missing key counts
// as 0. Overflow wraps.
enum c10d_status c10d_store_add(const struct c10d_store *store,
                                const char *key,
                                size_t key_len,
                                int64_t delta,
                                int64_t *sum);

// Writes `desired` if the value of the key equals `expected`, or if the key is missing and `expected` is empty. Writes
// the resulting value to `value`, and to `swapped` whether this call wrote it; each of them may be null. For a
// missing key and a non-empty `expected` the value is `expected`, and the key is still missing.
enum c10d_status c10d_store_compare_set(const struct c10d_store *store,
                                        const char *key,
                                        size_t key_len,
                                        const void *expected,
                                        size_t expected_len,
                                        const void *desired,
                                        size_t desired_len,
                                        enum c10d_swapped *swapped,
                                        struct c10d_buffer *value);

// Whether all keys exist, without waiting for them. True for no keys.
enum c10d_status c10d_store_check(const struct c10d_store *store,
                                  const struct c10d_bytes *keys,
                                  size_t key_count,
                                  bool *all_exist);

// Removes a key, and writes to `existed`, which may be null, whether it existed.
enum c10d_status c10d_store_delete_key(const struct c10d_store *store,
                                       const char *key,
                                       size_t key_len,
                                       bool *existed);

// The number of keys with a value in the whole store, including those outside of a prefix and the store's own.
enum c10d_status c10d_store_num_keys(const struct c10d_store *store,
                                     uint64_t *count);

// All keys that have a value, in no particular order, of a prefix store those below its prefix. Free the list with
// `c10d_buffer_list_free`.
enum c10d_status c10d_store_list_keys(const struct c10d_store *store,
                                      struct c10d_buffer_list *keys);

// Appends to the value of the key, and creates it if it is missing.
enum c10d_status c10d_store_append(const struct c10d_store *store,
                                   const char *key,
                                   size_t key_len,
                                   const void *value,
                                   size_t value_len);

// Sets the value of each key, from first to last: `values` has as many elements as `keys`.
enum c10d_status c10d_store_multi_set(const struct c10d_store *store,
                                      const struct c10d_bytes *keys,
                                      const struct c10d_bytes *values,
                                      size_t count);

// Appends a value to a queue.
enum c10d_status c10d_store_queue_push(const struct c10d_store *store,
                                       const char *key,
                                       size_t key_len,
                                       const void *value,
                                       size_t value_len);

// Removes and returns the first element of a queue, without waiting for one: `found` is false and the value is empty
// if the queue is empty.
enum c10d_status c10d_store_try_queue_pop(const struct c10d_store *store,
                                          const char *key,
                                          size_t key_len,
                                          bool *found,
                                          struct c10d_buffer *value);

// The number of elements in a queue; 0 for a missing one.
enum c10d_status c10d_store_queue_len(const struct c10d_store *store,
                                      const char *key,
                                      size_t key_len,
                                      uint64_t *count);

// The value of a key. Waits until it exists. Free the value with `c10d_buffer_free`.
enum c10d_status c10d_store_get(const struct c10d_store *store,
                                const char *key,
                                size_t key_len,
                                int64_t timeout_ms,
                                const struct c10d_cancel *cancel,
                                struct c10d_buffer *value);

// Waits until all keys exist. The server notifies the waiting call, so only file stores poll.
enum c10d_status c10d_store_wait(const struct c10d_store *store,
                                 const struct c10d_bytes *keys,
                                 size_t key_count,
                                 int64_t timeout_ms,
                                 const struct c10d_cancel *cancel);

// Waits until the value of a key differs from `known`, and returns it; at once if it differs already. A missing
// key is waited for. With `known` null, any value differs. PyTorch's servers do not tell of changes: there it
// polls once a second.
enum c10d_status c10d_store_wait_change(const struct c10d_store *store,
                                        const char *key,
                                        size_t key_len,
                                        const void *known,
                                        size_t known_len,
                                        int64_t timeout_ms,
                                        const struct c10d_cancel *cancel,
                                        struct c10d_buffer *value);

// The values of all keys, in their order. Waits until all exist. Free the list with `c10d_buffer_list_free`.
enum c10d_status c10d_store_multi_get(const struct c10d_store *store,
                                      const struct c10d_bytes *keys,
                                      size_t key_count,
                                      int64_t timeout_ms,
                                      const struct c10d_cancel *cancel,
                                      struct c10d_buffer_list *values);

// Removes and returns the first element of a queue. Waits for one. Free it with `c10d_buffer_free`.
enum c10d_status c10d_store_queue_pop(const struct c10d_store *store,
                                      const char *key,
                                      size_t key_len,
                                      int64_t timeout_ms,
                                      const struct c10d_cancel *cancel,
                                      struct c10d_buffer *value);

// Removes and returns elements from the head of a queue: at least one, and at most `max`. Waits for one; with
// `C10D_CHECK_ONCE` the list may be empty. A server returns at most 4 MiB at once, or one element. Free the list
// with `c10d_buffer_list_free`.
enum c10d_status c10d_store_queue_take(const struct c10d_store *store,
                                       const char *key,
                                       size_t key_len,
                                       size_t max,
                                       int64_t timeout_ms,
                                       const struct c10d_cancel *cancel,
                                       struct c10d_buffer_list *values);

// Waits until `world_size` workers have arrived at the barrier `key`. A key works once: a completed barrier stays
// open. An arrival that timed out or was cancelled stays counted, so repeat with another key.
enum c10d_status c10d_store_barrier(const struct c10d_store *store,
                                    const char *key,
                                    size_t key_len,
                                    size_t world_size,
                                    int64_t timeout_ms,
                                    const struct c10d_cancel *cancel);

// Writes the value and owns the key: `owned` is true, and `present` is empty. If the key has a value of another
// owner, or without an owner, the store does not change: `owned` is false, and `present` has the value. The server
// deletes the key when the handle is closed or freed, its process exits, or its connection breaks. Then it writes
// `will_value` to `will_key`, unless `will_key` is null. Clones of the handle own other keys; a handle owns at
// most 1024.
enum c10d_status c10d_store_set_ephemeral(const struct c10d_store *store,
                                          const char *key,
                                          size_t key_len,
                                          const void *value,
                                          size_t value_len,
                                          const char *will_key,
                                          size_t will_key_len,
                                          const void *will_value,
                                          size_t will_value_len,
                                          bool *owned,
                                          struct c10d_buffer *present);

// Says that this process lives. From now on the keys that the handle owns also end when it is silent for
// `silence_max_ms`, which the server notices within 250 ms; `C10D_FOREVER` is no such end. So call it three times as often.
// `kept` is false if keys have ended by silence, or with their connection, since the last call: set them again.
enum c10d_status c10d_store_keep_alive(const struct c10d_store *store,
                                       int64_t silence_max_ms,
                                       bool *kept);

// Ends the calls of all clients that wait for a key, a barrier or a queue whose name begins with the prefix: they return
// `C10D_ERROR_WAIT_ENDED`, and PyTorch's raise a `DistStoreError`. Writes to `count`, which may be null, how many.
enum c10d_status c10d_store_end_waits(const struct c10d_store *store,
                                      const char *prefix,
                                      size_t prefix_len,
                                      uint64_t *count);

// Deletes the values and queues of all names that begin with the prefix, which must not be empty, and writes their
// number to `count`, which may be null. If `delay_ms` is not 0, the function returns at once with a count of 0.
// The server then deletes the names that exist after this time.
enum c10d_status c10d_store_delete_prefix(const struct c10d_store *store,
                                          const char *prefix,
                                          size_t prefix_len,
                                          uint64_t delay_ms,
                                          uint64_t *count);

// A new handle that cancels calls. Free it with `c10d_cancel_free`.
enum c10d_status c10d_cancel_new(struct c10d_cancel **cancel);

// Cancels all blocking calls with this handle: they return `C10D_ERROR_INTERRUPTED`. Later calls do the same at
// once, until `c10d_cancel_reset`. A call whose result is present, or arrives at the same time, may return it. To
// cancel a wait, the library notifies the server, which has 100 ms to confirm it, or 2 s for
// `c10d_store_queue_take`, so that the store stays usable. Any thread may call this function. Does not block.
enum c10d_status c10d_cancel_now(const struct c10d_cancel *cancel);

// Lets later calls with this handle wait again. Calls that were cancelled before still end.
enum c10d_status c10d_cancel_reset(const struct c10d_cancel *cancel);

// Frees a handle. Calls with this handle must have returned. Null is ignored.
void c10d_cancel_free(struct c10d_cancel *cancel);

// Starts a server. It listens on `host`: an address, a name, which means all of its addresses that this machine has,
// or `*` for all interfaces. For port 0 the system chooses one: `c10d_server_port`. TCPStore's protocol has no
// authentication: listen on an address of the cluster's own network, or use a secret. `options` may be null.
enum c10d_status c10d_server_start(const char *host,
                                   uint16_t port,
                                   const struct c10d_options *options,
                                   struct c10d_server **server);

// The port that the server listens on, or listened on until it was stopped.
enum c10d_status c10d_server_port(const struct c10d_server *server, uint16_t *port);

// The number of connections. A host can wait until its clients have left before it stops the server.
enum c10d_status c10d_server_connection_count(const struct c10d_server *server, size_t *count);

// Checks that the server still serves. `C10D_ERROR_JOURNAL` if its directory could not be written: the server has
// then stopped and closed all connections, and the directory has all confirmed writes. `C10D_ERROR_CLOSED` after a
// stop.
enum c10d_status c10d_server_check(const struct c10d_server *server);

// Closes all connections and joins the server's thread, which takes microseconds. Without a directory the data is lost.
// Stopping it again changes nothing.
enum c10d_status c10d_server_stop(const struct c10d_server *server);

// Stops the server if it runs, and frees it. Calls on the server must have returned. Null is ignored. In a forked
// child, only the memory of the handle is freed.
void c10d_server_free(struct c10d_server *server);

// The rank of this process in the job: `RANK`.
enum c10d_status c10d_env_rank(size_t *rank);

// The number of processes of the job: `WORLD_SIZE`.
enum c10d_status c10d_env_world_size(size_t *world_size);

// The rank of this process among the processes of its node: `LOCAL_RANK`, usually the number of
// its GPU.
enum c10d_status c10d_env_local_rank(size_t *local_rank);

// The number of processes of this node: `LOCAL_WORLD_SIZE`.
enum c10d_status c10d_env_local_world_size(size_t *local_world_size);

// Joins the group of all workers of this job, and returns when all have joined. Reads the variables that `c10d
// run` and torchrun set: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`. Rank 0 hosts the store, unless the
// launcher does.
//
// All ranks give the same `name`; null means `world`. A process can join a group of a name once. Of the options,
// which may be null, it uses the timeout, the longest value, the secret and the cancel handle.
enum c10d_status c10d_group_init_from_env(const char *name,
                                          const struct c10d_options *options,
                                          struct c10d_group **group);

// Joins a group over a store, as `rank` of `world_size`, and returns when all have joined. The group shares the
// store, which must stay reachable for it: close it after the group is finished. Otherwise as
// `c10d_group_init_from_env`.
enum c10d_status c10d_group_join(const char *name,
                                 const struct c10d_store *store,
                                 size_t rank,
                                 size_t world_size,
                                 const struct c10d_options *options,
                                 struct c10d_group **group);

// A group of some ranks of this one, in the order of `ranks`: the first becomes rank 0. Called by these ranks
// only, with the same name and list; returns when all have called it. A name serves once.
enum c10d_status c10d_group_split(const struct c10d_group *parent,
                                  const char *name,
                                  const size_t *ranks,
                                  size_t rank_count,
                                  int64_t timeout_ms,
                                  const struct c10d_cancel *cancel,
                                  struct c10d_group **group);

// The rank of this process in the group, from 0 on.
enum c10d_status c10d_group_rank(const struct c10d_group *group, size_t *rank);

// The number of ranks in the group.
enum c10d_status c10d_group_world_size(const struct c10d_group *group, size_t *world_size);

// Opens a handle to the store of the group, for the program's own values; the group's keys begin with `c10d/`.
// Closing it closes the group's store. Free it with `c10d_store_free`; a store that this process hosts stops with
// the last handle.
enum c10d_status c10d_group_store(const struct c10d_group *group,
                                  struct c10d_store **store);

// Copies `len` bytes from rank `root` to all ranks, for example the id of an NCCL communicator: `value` is read on
// the root and written on all other ranks. Returns when all ranks have the value. `C10D_ERROR_MISMATCH` if the
// root's value has a different length; this rank has still taken part, and `value` is unchanged.
enum c10d_status c10d_group_broadcast(const struct c10d_group *group,
                                      size_t root,
                                      void *value,
                                      size_t len,
                                      int64_t timeout_ms,
                                      const struct c10d_cancel *cancel);

// Like `c10d_group_broadcast`, for a value whose length only the root has: the root passes `value` and `len`,
// which the other ranks ignore. All ranks receive a copy in `received`. Free it with `c10d_buffer_free`.
enum c10d_status c10d_group_broadcast_any(const struct c10d_group *group,
                                          size_t root,
                                          const void *value,
                                          size_t len,
                                          int64_t timeout_ms,
                                          const struct c10d_cancel *cancel,
                                          struct c10d_buffer *received);

// Waits until all ranks have called it.
enum c10d_status c10d_group_barrier(const struct c10d_group *group,
                                    int64_t timeout_ms,
                                    const struct c10d_cancel *cancel);

// The values of all ranks, by rank; they may have different lengths. Free the list with `c10d_buffer_list_free`.
enum c10d_status c10d_group_all_gather(const struct c10d_group *group,
                                       const void *value,
                                       size_t len,
                                       int64_t timeout_ms,
                                       const struct c10d_cancel *cancel,
                                       struct c10d_buffer_list *values);

// Waits until all ranks have called it, at most the timeout of the group: the last operation before the group is
// freed. A rank that hosts the store returns when the other ranks have left, or after 10 s.
enum c10d_status c10d_group_finish(const struct c10d_group *group,
                                   const struct c10d_cancel *cancel);

// Frees a group. A store that this process hosts for it stops, unless a handle of `c10d_group_store` remains.
// Calls on the group must have returned. Null is ignored. In a forked child, only the memory of the handle is
// freed.
void c10d_group_free(struct c10d_group *group);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* C10D_H */
