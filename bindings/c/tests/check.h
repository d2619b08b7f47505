/* Checks for the test programs: each failure names its line, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <c10d.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...)                                                     \
    do {                                                              \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);               \
        fprintf(stderr, __VA_ARGS__);                                 \
        fprintf(stderr, "\n");                                        \
        exit(1);                                                      \
    } while (0)

#define CHECK(condition)                                              \
    do {                                                              \
        if (!(condition)) FAIL("not so: %s", #condition);             \
    } while (0)

/* The call returns this status. */
#define RETURNS(expected, call)                                       \
    do {                                                              \
        c10d_status status_ = (call);                                 \
        if (status_ != (expected))                                    \
            FAIL("%s returned %s, not %s; last error: %s", #call,     \
                 c10d_status_name((int32_t)status_), #expected,       \
                 c10d_last_error());                                  \
    } while (0)

#define OK(call) RETURNS(C10D_OK, call)

/* The call fails as an invalid argument, and the text names it. */
#define REFUSES(name, call)                                           \
    do {                                                              \
        RETURNS(C10D_ERROR_INVALID_ARGUMENT, call);                   \
        SAYS(name);                                                   \
    } while (0)

#define SAYS(text)                                                    \
    do {                                                              \
        if (strstr(c10d_last_error(), (text)) == NULL)                \
            FAIL("the error is: %s", c10d_last_error());              \
    } while (0)

/* A key or value of a string literal, as two arguments. */
#define S(text) (text), (sizeof(text) - 1)

static inline c10d_bytes bytes_of(const char *text) {
    c10d_bytes bytes = {text, strlen(text)};
    return bytes;
}

/* The buffer holds this text. Frees it. */
#define HOLDS(buffer, text) holds(&(buffer), (text), __LINE__)

static inline void holds(c10d_buffer *buffer, const char *text, int line) {
    if (buffer->len != strlen(text) || memcmp(buffer->data, text, buffer->len) != 0) {
        fprintf(stderr, "line %d: %.*s is not %s\n", line, (int)buffer->len, buffer->data, text);
        exit(1);
    }
    c10d_buffer_free(buffer);
    if (buffer->data != NULL || buffer->len != 0) {
        fprintf(stderr, "line %d: the freed buffer is not zero\n", line);
        exit(1);
    }
}

#endif
