/* A host with a fault, for faults.py: gcc -shared -fPIC -o host.so fault_host.c; LD_PRELOAD=host.so COMMAND

   FSYNC_SECONDS   how long each fsync takes
   CLOCK_FILE      a file; once it is there, its number of seconds is added to the wall clock */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define A_BILLION 1000000000 /* seconds: later times are of the wall clock, earlier ones of the monotonic clock */

static long jump(void)
{
    static long seconds;
    const char *name = getenv("CLOCK_FILE");
    if (seconds || !name || access(name, F_OK))
        return seconds;
    FILE *file = fopen(name, "r");
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1)
            seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += jump();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec, now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *also)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    return also ? *also = precise.tv_sec : precise.tv_sec;
}

/* The kernel's clock has not jumped, so waits until a time of ours are told its own. */
static struct timespec of_kernel(const struct timespec *end)
{
    struct timespec theirs = *end;
    if (theirs.tv_sec > A_BILLION)
        theirs.tv_sec -= jump();
    return theirs;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *end)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec theirs = of_kernel(end);
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return real(condition, mutex, &theirs);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *end)
{
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec theirs = of_kernel(end);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(semaphore, &theirs);
}

int fsync(int file)
{
    const char *seconds = getenv("FSYNC_SECONDS");
    if (seconds)
        sleep(atoi(seconds));
    return syscall(SYS_fsync, file);
}
