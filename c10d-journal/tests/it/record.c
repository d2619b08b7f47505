/* Preloaded into a process: records each write, truncation, removal and sync of the files in $C10D_RECORD_FOLDER, in order, in
 * $C10D_RECORD_LOG. A record is a line, `kind name offset length`, then the bytes of a write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int log_fd = -1;
static char folder[PATH_MAX];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void start(void) {
    const char *log = getenv("C10D_RECORD_LOG"), *in = getenv("C10D_RECORD_FOLDER");
    if (!log || !in || !realpath(in, folder)) return;
    log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) abort();
}

/* The name of a file in the folder, "." for the folder, else NULL. */
static const char *name_in(const char *path) {
    size_t prefix = strlen(folder);
    if (log_fd < 0 || strncmp(path, folder, prefix)) return NULL;
    return path[prefix] == '/' ? path + prefix + 1 : path[prefix] ? NULL : ".";
}

static const char *name_of(int fd, char *path) {
    char link[64];
    if (log_fd < 0) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    return name_in(path);
}

static void record(char kind, const char *name, off_t offset, size_t length, const void *bytes) {
    char head[NAME_MAX + 64];
    int size = snprintf(head, sizeof head, "%c %s %lld %zu\n", kind, name, (long long)offset, length);
    /* One call, so that a kill leaves no half of it. */
    struct iovec parts[2] = {{head, (size_t)size}, {(void *)bytes, bytes ? length : 0}};
    if (writev(log_fd, parts, 2) != (ssize_t)(size + parts[1].iov_len)) abort();
}

ssize_t write(int fd, const void *bytes, size_t length) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    off_t offset = name ? lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t written = REAL(write)(fd, bytes, length);
    if (name && written > 0) record('W', name, offset, (size_t)written, bytes);
    return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    ssize_t written = REAL(pwrite)(fd, bytes, length, offset);
    if (name && written > 0) record('W', name, offset, (size_t)written, bytes);
    return written;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    return pwrite(fd, bytes, length, offset);
}

int ftruncate(int fd, off_t length) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    int result = REAL(ftruncate)(fd, length);
    if (name && result == 0) record('T', name, length, 0, NULL);
    return result;
}

int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

int unlink(const char *path) {
    const char *name = name_in(path);
    int result = REAL(unlink)(path);
    if (name && result == 0) record('U', name, 0, 0, NULL);
    return result;
}

int fsync(int fd) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    int result = REAL(fsync)(fd);
    if (name && result == 0) record('S', name, 0, 0, NULL);
    return result;
}

int fdatasync(int fd) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    int result = REAL(fdatasync)(fd);
    if (name && result == 0) record('S', name, 0, 0, NULL);
    return result;
}
