// What products of words ask for beyond the rest.

#include "split_emulation.hpp"

template <int HIGH> inline int dot_two(int pair, u32 codes, int total) {
    codes >>= 16 * HIGH;
    return total + (int16_t)(pair & 0xffff) * (int)(codes & 0xff) +
           (int16_t)(pair >> 16) * (int)(codes >> 8 & 0xff);
}
