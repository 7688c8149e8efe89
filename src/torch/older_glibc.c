// SPDX-License-Identifier: Apache-2.0
/// Symbols that GCC's static C++ library takes from a newer glibc than the wheel wants, made from those of the older one.
#include <stdlib.h>
#include <sys/random.h>

#define LOCAL __attribute__((visibility("hidden")))

struct stat64;
int __fxstat64(int version, int file, struct stat64* to);

LOCAL char __libc_single_threaded = 0;  // reference counts are atomic always

LOCAL int fstat64(int file, struct stat64* to) { return __fxstat64(1, file, to); }

LOCAL unsigned int arc4random(void) {
  unsigned int bits;
  if (getentropy(&bits, sizeof bits) != 0) abort();
  return bits;
}
