// Products of four warps with matrices that lie swizzled in shared memory, on Hopper.

#define NUMBERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NUMBERS_24 NUMBERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NUMBERS_32 NUMBERS_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NUMBERS_48 \
    NUMBERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NUMBERS_64 \
    NUMBERS_32 "," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NUMBERS_128 \
    NUMBERS_64 "," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define SUM(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SUMS_4(i) SUM(i), SUM(i + 1), SUM(i + 2), SUM(i + 3)
#define SUMS_8(i) SUMS_4(i), SUMS_4(i + 4)
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)


// c += A B, or c = A B: A's rows are in registers as in `multiply_together`, where c lies as well;
// columns of B are contiguous.
__device__ __forceinline__ void multiply_rows(float (&c)[8][4], const u32 (&a)[4], u64 b,
                                              int adds) {
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NUMBERS_32
                 "}, {%32,%33,%34,%35}, %36, adds, 1, 1, 0;}"
                 : SUMS_8(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_rows(float (&c)[16][4], const u32 (&a)[4], u64 b,
                                              int adds) {
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %69, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NUMBERS_64
                 "}, {%64,%65,%66,%67}, %68, adds, 1, 1, 0;}"
                 : SUMS_16(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
}

// The same with A in shared memory, its rows contiguous.
__device__ __forceinline__ void multiply_shared(float (&c)[2][4], u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %10, 0; "
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
                 "%8, %9, adds, 1, 1, 0, 0;}"
                 : SUM(0), SUM(1)
                 : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_shared(float (&c)[4][4], u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %18, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NUMBERS_16
                 "}, %16, %17, adds, 1, 1, 0, 0;}"
                 : SUMS_4(0)
                 : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_shared(float (&c)[6][4], u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %26, 0; "
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {" NUMBERS_24
                 "}, %24, %25, adds, 1, 1, 0, 0;}"
                 : SUMS_4(0), SUM(4), SUM(5)
                 : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_shared(float (&c)[8][4], u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %34, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NUMBERS_32
                 "}, %32, %33, adds, 1, 1, 0, 0;}"
                 : SUMS_8(0)
                 : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_shared(float (&c)[12][4], u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %50, 0; "
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" NUMBERS_48
                 "}, %48, %49, adds, 1, 1, 0, 0;}"
                 : SUMS_8(0), SUMS_4(8)
                 : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_shared(float (&c)[16][4], u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %66, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NUMBERS_64
                 "}, %64, %65, adds, 1, 1, 0, 0;}"
                 : SUMS_16(0)
                 : "l"(a), "l"(b), "r"(adds));
}

// c += A B: A's rows in registers; rows of B are contiguous.
__device__ __forceinline__ void multiply_registers(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NUMBERS_32
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : SUMS_8(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void multiply_registers(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NUMBERS_64
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : SUMS_16(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void multiply_registers(float (&c)[32][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NUMBERS_128
                 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"
                 : SUMS_32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
