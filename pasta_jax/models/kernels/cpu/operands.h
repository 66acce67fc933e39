// What products and attention are computed from.

#pragma once

#include <cstdint>

namespace {

constexpr int64_t PANEL = 32;  // outputs
constexpr int64_t STEP = 16;   // inputs whose codes are read together
constexpr int64_t AHEAD = 6;   // slots whose keys or values are fetched before they are used

enum Kind { NUMBERS, HALVES, NIBBLES, SIXES, BYTES };

// Words of 32 bits that hold an output's codes of STEP inputs, and what is added to a code so that it isn't negative.
//
// Codes are stored for products of bytes, which take four inputs at a time: byte j of a word of BYTES has the code of
// its input j, and of a word of NIBBLES, inputs j and 4 + j in its lower and upper half. SIXES are two such words with
// the lower four bits, and one whose byte j has the upper two of inputs j, 4 + j, 8 + j and 12 + j, from its lowest bits.
constexpr int64_t words_of(Kind kind) { return kind == NIBBLES ? 2 : kind == SIXES ? 3 : 4; }
constexpr int32_t offset_of(Kind kind) { return kind == NIBBLES ? 0 : kind == SIXES ? 32 : 128; }

// Of a matrix of codes: a scale or a minimum of each output and group of inputs. Numbers of 32 bits, of 16 bits, or
// bytes times a factor for each block of several groups.
struct Scales {
  const float* numbers;     // [I / group][PANEL]
  const uint16_t* halves;   // [I / group][PANEL]
  const int8_t* small;      // [I / group][PANEL]
  const uint16_t* factors;  // [I / block][PANEL]; halves, beside `small`

  bool are_there() const { return numbers != nullptr || halves != nullptr || small != nullptr; }

  Scales from(int64_t group, int64_t block) const {
    Scales s = *this;
    if (numbers != nullptr) s.numbers += group;
    if (halves != nullptr) s.halves += group;
    if (small != nullptr) s.small += group, s.factors += block;
    return s;
  }
};

// A matrix, or a panel of it: numbers of 32 bits, bfloat16s (the upper halves of such), or codes: weight = code * scale
// + minimum, if there are minimums. A low-rank pair may be added to it; `up` is its outputs' half.
struct Matrix {
  Kind kind;
  const float* numbers;    // [I][PANEL]
  const uint16_t* halves;  // [I][PANEL]
  const uint32_t* words;   // [I / STEP * words_of(kind)][PANEL]
  Scales scales, minimums;
  const float* up;  // [rank][PANEL], or null
  int64_t inputs, group, block, rank;

  bool has_codes() const { return kind != NUMBERS && kind != HALVES; }
  int64_t groups() const { return inputs / group; }

  Matrix panel(int64_t number) const {
    Matrix m = *this;
    const int64_t at = number * inputs * PANEL;
    if (kind == NUMBERS) m.numbers += at;
    if (kind == HALVES) m.halves += at;
    if (has_codes()) {
      m.words += at / STEP * words_of(kind);
      m.scales = scales.from(at / group, at / block);
      m.minimums = minimums.from(at / group, at / block);
    }
    if (up != nullptr) m.up += number * rank * PANEL;
    return m;
  }

  Matrix from(int64_t output) const {
    Matrix m = *this;
    if (kind == NUMBERS) m.numbers += output;
    if (kind == HALVES) m.halves += output;
    if (has_codes()) m.words += output;
    m.scales = scales.from(output, output);
    m.minimums = minimums.from(output, output);
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

constexpr int64_t BLOCK = 8;      // rows, at most
constexpr int64_t LARGEST = 256;  // group: its sums fit 32 bits

// How four codes of a matrix meet those of inputs: bytes with bytes; with 16 bits in two planes of bytes, the upper one
// last; or as 16 bits with 16 bits, the first and third together, and the others.
enum Form { QUADS, PLANES, PAIRS };

// Words of 32 bits with the codes of four inputs, and sums of products: each plane has its own.
constexpr int words_of(Form form) { return form == QUADS ? 1 : 2; }
constexpr int dots_of(Form form) { return form == PLANES ? 2 : 1; }

// The same for products of integers, a block of at most BLOCK rows: a group's inputs as codes of 8 or 16 bits with a
// scale.
struct CodedRows {
  int8_t* codes;   // [inputs / STEP][R][4][words][4]: one or two words of four bytes for four inputs
  float* scales;   // [groups][R]
  float* totals;   // [groups][R]; as above
  int32_t* first;  // [groups][R]: the sum of a group's codes, times minus the offset of the matrix's

  CodedRows from(int64_t row, int64_t inputs, int64_t groups, int64_t words) const {
    return {codes + row * inputs * words, scales + row * groups, totals + row * groups, first + row * groups};
  }
};

// What multiplies a kind of matrix in one form, a block of so many rows at a time.
struct Products {
  void (*code)(const Matrix& w, const float* x, int64_t rows, int64_t begin, int64_t end, float most, const CodedRows& to);
  void (*panel)(const Matrix& w, const CodedRows& in, int64_t rows, const float* down, float* y, int64_t stride);
  int64_t rows, words;
};

// Query heads of one row that share a key/value head, and what they attend to.
struct Heads {
  const float *q, *k, *v;  // [G, D], [S, D], [S, D]
  float* out;              // [G, D]
  const int32_t* slots;    // the visible ones, in the order in which sums add up
  float* weights;          // [G, width]
  int64_t visible, width;  // width: as many slots, to whole vectors of any instruction set
  int64_t groups, dims;
  float scale, cap;  // cap 0: none
};

}  // namespace
