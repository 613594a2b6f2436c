/* Which kernels this machine runs. */
#include "native.h"

#include <string.h>

extern const luce_kernels luce_kernels_plain;
#if defined(__x86_64__)
extern const luce_kernels luce_kernels_avx2, luce_kernels_avx512;

static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
extern const luce_kernels luce_kernels_neon;

static int has_dotprod(void) {
    return (getauxval(AT_HWCAP) >> 20 & 1) != 0;
}
#endif

const luce_kernels *luce_level(const char *name) {
    const luce_kernels *levels[4];
    int count = 0;
#if defined(__x86_64__)
    if (has_avx512()) levels[count++] = &luce_kernels_avx512;
    if (has_avx2()) levels[count++] = &luce_kernels_avx2;
#elif defined(__aarch64__)
    if (has_dotprod()) levels[count++] = &luce_kernels_neon;
#endif
    levels[count++] = &luce_kernels_plain;
    if (name == NULL) return levels[0];
    for (int index = 0; index < count; index++) {
        if (strcmp(levels[index]->name, name) == 0) return levels[index];
    }
    return NULL;
}
