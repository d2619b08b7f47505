/* Preloaded into a process: after $C10D_FAIL_AFTER calls, writes (C10D_FAIL=write) or syncs (C10D_FAIL=sync) of the write-ahead
 * log fail with the error $C10D_FAIL_ERRNO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fails(const char *kind, int fd) {
    static int calls;
    const char *failing = getenv("C10D_FAIL"), *after = getenv("C10D_FAIL_AFTER"), *error = getenv("C10D_FAIL_ERRNO");
    char link[64], path[PATH_MAX];
    if (!failing || !after || !error || strcmp(failing, kind)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 4 || strncmp(path + length - 4, "-wal", 4) || ++calls <= atoi(after)) return 0;
    errno = atoi(error);
    return 1;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return fails("write", fd) ? -1 : REAL(pwrite)(fd, bytes, length, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) { return pwrite(fd, bytes, length, offset); }

int fsync(int fd) { return fails("sync", fd) ? -1 : REAL(fsync)(fd); }

int fdatasync(int fd) { return fails("sync", fd) ? -1 : REAL(fdatasync)(fd); }
