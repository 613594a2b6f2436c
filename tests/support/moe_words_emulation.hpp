// What mixtures of up to four tokens ask for beyond the rest.

#include "moe_emulation.hpp"

inline int dot_low(int pair, u32 codes, int total) {
    return total + (int16_t)pair * (int)(codes & 255) + (pair >> 16) * (int)(codes >> 8 & 255);
}
inline int dot_high(int pair, u32 codes, int total) { return dot_low(pair, codes >> 16, total); }
template <int N> inline void read_once(u32 (&to)[N], const char *from) {
    std::memcpy(to, from, sizeof to);
}
inline u32 read_half(const u16 *from) { return *from; }
inline u32 read_word(const u32 *from) { return *from; }
