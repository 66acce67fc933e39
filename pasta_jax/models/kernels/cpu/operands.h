// What products and attention are computed from.

#pragma once

#include <cstdint>

namespace {

constexpr int64_t PANEL = 32;  // outputs
constexpr int64_t WORD = 8;    // codes of 4 bits in 32
constexpr int64_t AHEAD = 6;   // slots whose keys or values are fetched before they are used

enum Kind { NUMBERS, BYTES, NIBBLES, HALVES };

// A matrix, or a panel of it: numbers of 32 bits, bfloat16s (the upper halves of such), or codes of 8 or 4 bits. With
// codes, each output has a scale for every group of inputs, and
// a minimum if there are minimums: weight = code * scale + minimum. With factors, one for each block of several groups,
// scales and minimums are bytes: scale = byte * factor, minimum = byte * floor. A low-rank pair may be added to it; `up`
// is its outputs' half.
struct Matrix {
  Kind kind;
  const float* numbers;     // [I][PANEL]
  const uint16_t* halves;   // [I][PANEL]
  const int8_t* bytes;      // [I][PANEL]
  const uint32_t* nibbles;  // [I / WORD][PANEL]; the first input's code in the lowest bits
  const float* scales;      // [I / group][PANEL]
  const float* minimums;    // [I / group][PANEL], or null
  const int8_t* small_scales;    // [I / group][PANEL], in place of `scales`
  const int8_t* small_minimums;  // [I / group][PANEL], in place of `minimums`, or null
  const float* factors;          // [I / block][PANEL], or null
  const float* floors;           // [I / block][PANEL], or null
  const float* up;          // [rank][PANEL], or null
  int64_t inputs, group, block, rank;

  bool has_codes() const { return kind == BYTES || kind == NIBBLES; }
  bool has_minimums() const { return minimums != nullptr || small_minimums != nullptr; }

  Matrix panel(int64_t number) const {
    Matrix m = *this;
    const int64_t at = number * inputs * PANEL;
    if (kind == NUMBERS) m.numbers += at;
    if (kind == HALVES) m.halves += at;
    if (kind == BYTES) m.bytes += at;
    if (kind == NIBBLES) m.nibbles += at / WORD;
    if (scales != nullptr) m.scales += at / group;
    if (minimums != nullptr) m.minimums += at / group;
    if (small_scales != nullptr) m.small_scales += at / group;
    if (small_minimums != nullptr) m.small_minimums += at / group;
    if (factors != nullptr) m.factors += at / block;
    if (floors != nullptr) m.floors += at / block;
    if (up != nullptr) m.up += number * rank * PANEL;
    return m;
  }

  Matrix from(int64_t output) const {
    Matrix m = *this;
    if (kind == NUMBERS) m.numbers += output;
    if (kind == HALVES) m.halves += output;
    if (kind == BYTES) m.bytes += output;
    if (kind == NIBBLES) m.nibbles += output;
    for (const float** field : {&m.scales, &m.minimums, &m.factors, &m.floors}) {
      if (*field != nullptr) *field += output;
    }
    for (const int8_t** field : {&m.small_scales, &m.small_minimums}) {
      if (*field != nullptr) *field += output;
    }
    if (up != nullptr) m.up += output;
    return m;
  }
};

// Rows to multiply, and what is computed from them once for all panels.
struct Rows {
  const float* x;       // [R][inputs]
  const float* totals;  // [R][groups]: the sum of each group of inputs, if the matrix has minimums
  const float* down;    // [R][rank]: times the inputs' half of the low-rank pair
  int64_t inputs, groups, rank;

  Rows from(int64_t row) const {
    Rows rows = *this;
    rows.x += row * inputs;
    if (totals != nullptr) rows.totals += row * groups;
    if (down != nullptr) rows.down += row * rank;
    return rows;
  }
};

// Query heads of one row that share a key/value head, and what they attend to.
struct Heads {
  const float *q, *k, *v;  // [G, D], [S, D], [S, D]
  float* out;              // [G, D]
  const int32_t* slots;    // the visible ones
  float* weights;          // room for as many per query head
  int64_t visible, groups, dims;
  float scale, cap;  // cap 0: none
};

}  // namespace
