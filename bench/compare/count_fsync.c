/* Counts fsync and fdatasync of every process that loads it, in a file that they share.
 *
 * strace would count as well, but it stops the process at every system call, and a slower server groups more
 * requests into one fsync: the count would be of another server than the one that is measured.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t *count;

__attribute__((constructor)) static void share_count(void) {
    const char *path = getenv("BENCH_FSYNC_COUNT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *shared = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED)
        count = shared;
    close(fd);
}

static int counted(long call, int fd) {
    if (count)
        __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    return (int)syscall(call, fd);
}

int fsync(int fd) { return counted(SYS_fsync, fd); }
int fdatasync(int fd) { return counted(SYS_fdatasync, fd); }
