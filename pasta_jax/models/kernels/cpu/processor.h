// Which vector instructions the processor has and the system lets programs use. Asked by CPUID: compilers' own questions
// need names that older ones lack, and ziglang's answer no to all.

#pragma once

#include <cpuid.h>

namespace {

struct Processor {
  bool avx2, avxvnni, avx512, vnni;  // avx2: with FMA and F16C; avx512: with BW, DQ and VL
};

inline Processor processor() {
  unsigned a = 0, b = 0, c = 0, d = 0, more = 0, saved = 0, upper = 0;
  const auto all = [](unsigned word, std::initializer_list<int> bits) {
    return std::all_of(bits.begin(), bits.end(), [=](int bit) { return word >> bit & 1; });
  };
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !all(c, {12, 27, 28, 29})) return {};
  __asm__ __volatile__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));  // the registers that the system saves
  if (!all(saved, {1, 2}) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !all(b, {5})) return {};
  __get_cpuid_count(7, 1, &more, &upper, &upper, &upper);
  const bool has_512 = all(saved, {5, 6, 7}) && all(b, {16, 17, 30, 31});
  return {true, all(more, {4}), has_512, has_512 && all(c, {11})};
}

}  // namespace
