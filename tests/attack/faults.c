// Preloaded into the program: lets the n-th call of a system function fail.
//   FP4MOE_FAULT=CALL:ERRNO:N    the N-th call of CALL in main fails with this errno; 0: it transfers half
//   FP4MOE_FAULT=CALL:ERRNO:N+   that one and all after it
//   FP4MOE_FAULT_LOG=PATH        gets the number of calls, and of those that failed
// `alloc` is every allocation, `thread` every pthread_create. Calls that write to standard output and
// error are left alone.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char wanted[32];
static int error_number;
static long nth;
static int is_lasting;
static atomic_int is_armed;  // main runs
static atomic_long calls, failures;

static void arm(void) {
  const char* fault = getenv("FP4MOE_FAULT");
  char plus = 0;
  if (fault == NULL || sscanf(fault, "%31[a-z_]:%d:%ld%c", wanted, &error_number, &nth, &plus) < 3) return;
  is_lasting = plus == '+';
  atomic_store(&is_armed, 1);
}

static void tell(void) {
  if (!atomic_exchange(&is_armed, 0)) return;
  const char* path = getenv("FP4MOE_FAULT_LOG");
  FILE* log = path == NULL ? NULL : fopen(path, "w");
  if (log == NULL) return;
  fprintf(log, "%ld %ld\n", atomic_load(&calls), atomic_load(&failures));
  fclose(log);
}

static int fails(const char* call) {
  if (!atomic_load(&is_armed) || strcmp(call, wanted) != 0) return 0;
  const long count = atomic_fetch_add(&calls, 1) + 1;
  if (is_lasting ? count < nth : count != nth) return 0;
  atomic_fetch_add(&failures, 1);
  if (error_number != 0) errno = error_number;
  return 1;
}

typedef int (*main_function)(int, char**, char**);
static main_function real_main;
static int armed_main(int count, char** arguments, char** environment) {
  arm();
  const int status = real_main(count, arguments, environment);
  tell();
  return status;
}
int __libc_start_main(main_function entry, int count, char** arguments, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void* end) {
  int (*next)(main_function, int, char**, void (*)(void), void (*)(void), void (*)(void), void*) =
      dlsym(RTLD_NEXT, "__libc_start_main");
  real_main = entry;
  return next(armed_main, count, arguments, init, fini, rtld_fini, end);
}

#define NEXT(name) \
  static __typeof__(&name) next; \
  if (next == NULL) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

// A function that fails with errno set and one value returned.
#define FAULTY(type, name, call, bad, parameters, arguments) \
  type name parameters { \
    NEXT(name); \
    return fails(call) ? (bad) : next arguments; \
  }
// One that transfers bytes: with errno 0 the half of them.
#define TRANSFER(name, call, parameters, arguments) \
  ssize_t name parameters { \
    NEXT(name); \
    if (fd > 2 && fails(call)) { \
      if (error_number != 0) return -1; \
      if (size > 1) size /= 2; \
    } \
    return next arguments; \
  }

TRANSFER(read, "read", (int fd, void* data, size_t size), (fd, data, size))
TRANSFER(write, "write", (int fd, const void* data, size_t size), (fd, data, size))
TRANSFER(pread, "read", (int fd, void* data, size_t size, off_t at), (fd, data, size, at))
TRANSFER(pread64, "read", (int fd, void* data, size_t size, off64_t at), (fd, data, size, at))
TRANSFER(pwrite, "write", (int fd, const void* data, size_t size, off_t at), (fd, data, size, at))
TRANSFER(pwrite64, "write", (int fd, const void* data, size_t size, off64_t at), (fd, data, size, at))

FAULTY(int, fsync, "fsync", -1, (int fd), (fd))
FAULTY(int, fdatasync, "fsync", -1, (int fd), (fd))
FAULTY(int, rename, "rename", -1, (const char* from, const char* to), (from, to))
FAULTY(int, renameat, "rename", -1, (int a, const char* from, int b, const char* to), (a, from, b, to))
FAULTY(int, renameat2, "rename", -1, (int a, const char* from, int b, const char* to, unsigned how), (a, from, b, to, how))
FAULTY(int, linkat, "link", -1, (int a, const char* from, int b, const char* to, int how), (a, from, b, to, how))
FAULTY(int, unlinkat, "unlink", -1, (int at, const char* path, int how), (at, path, how))
FAULTY(void*, mmap, "mmap", MAP_FAILED, (void* at, size_t size, int access, int how, int fd, off_t from),
       (at, size, access, how, fd, from))
FAULTY(void*, mmap64, "mmap", MAP_FAILED, (void* at, size_t size, int access, int how, int fd, off64_t from),
       (at, size, access, how, fd, from))
FAULTY(int, fallocate, "allocate", -1, (int fd, int how, off_t from, off_t size), (fd, how, from, size))
FAULTY(int, fallocate64, "allocate", -1, (int fd, int how, off64_t from, off64_t size), (fd, how, from, size))
FAULTY(int, posix_fallocate, "allocate", error_number, (int fd, off_t from, off_t size), (fd, from, size))
FAULTY(int, posix_fallocate64, "allocate", error_number, (int fd, off64_t from, off64_t size), (fd, from, size))
FAULTY(int, ftruncate, "truncate", -1, (int fd, off_t size), (fd, size))
FAULTY(int, ftruncate64, "truncate", -1, (int fd, off64_t size), (fd, size))
FAULTY(int, mkdir, "mkdir", -1, (const char* path, mode_t mode), (path, mode))
FAULTY(int, mkdirat, "mkdir", -1, (int at, const char* path, mode_t mode), (at, path, mode))
FAULTY(int, flock, "flock", -1, (int fd, int how), (fd, how))
FAULTY(int, fchmod, "chmod", -1, (int fd, mode_t mode), (fd, mode))
FAULTY(int, fstat, "stat", -1, (int fd, struct stat* to), (fd, to))
FAULTY(int, fstat64, "stat", -1, (int fd, struct stat64* to), (fd, to))
FAULTY(int, stat, "stat", -1, (const char* path, struct stat* to), (path, to))
FAULTY(int, lstat, "stat", -1, (const char* path, struct stat* to), (path, to))
FAULTY(int, fstatat, "stat", -1, (int at, const char* path, struct stat* to, int how), (at, path, to, how))
FAULTY(int, fstatat64, "stat", -1, (int at, const char* path, struct stat64* to, int how), (at, path, to, how))
FAULTY(DIR*, opendir, "opendir", NULL, (const char* path), (path))
FAULTY(DIR*, fdopendir, "opendir", NULL, (int fd), (fd))
FAULTY(struct dirent*, readdir, "readdir", NULL, (DIR* folder), (folder))
FAULTY(struct dirent64*, readdir64, "readdir", NULL, (DIR* folder), (folder))
FAULTY(FILE*, fopen, "open", NULL, (const char* path, const char* mode), (path, mode))
FAULTY(FILE*, fopen64, "open", NULL, (const char* path, const char* mode), (path, mode))
FAULTY(int, pthread_create, "thread", EAGAIN,
       (pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*), void* with), (thread, how, run, with))

// A failed close has closed the file nevertheless.
int close(int fd) {
  NEXT(close);
  const int is_failing = fails("close"), why = errno, status = next(fd);
  if (!is_failing) return status;
  errno = why;
  return -1;
}

#define OPEN(name, parameters, arguments) \
  int name parameters { \
    NEXT(name); \
    va_list rest; \
    va_start(rest, flags); \
    const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    if ((flags & __O_TMPFILE) != 0 && fails("tmpfile")) return -1; \
    return fails("open") ? -1 : next arguments; \
  }
OPEN(open, (const char* path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char* path, int flags, ...), (path, flags, mode))
OPEN(openat, (int at, const char* path, int flags, ...), (at, path, flags, mode))
OPEN(openat64, (int at, const char* path, int flags, ...), (at, path, flags, mode))

// dlsym allocates: the C library's own names.
extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* before, size_t size);
extern void* __libc_memalign(size_t alignment, size_t size);
void* malloc(size_t size) { return fails("alloc") ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return fails("alloc") ? NULL : __libc_calloc(count, size); }
void* realloc(void* before, size_t size) { return fails("alloc") ? NULL : __libc_realloc(before, size); }
void* aligned_alloc(size_t alignment, size_t size) {
  return fails("alloc") ? NULL : __libc_memalign(alignment, size);
}
int posix_memalign(void** to, size_t alignment, size_t size) {
  if (fails("alloc")) return ENOMEM;
  *to = __libc_memalign(alignment, size);
  return *to == NULL ? ENOMEM : 0;
}
