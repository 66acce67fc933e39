// Products on the machine's best instruction set, divided over threads. Included once, after all of level.h's.

namespace {

using Panels = void (*)(const Matrix& w, const Rows& in, float* y, int64_t rows, int64_t outputs, int64_t first,
                        int64_t last);
using Dots = void (*)(const float* x, const float* matrix, float* y, int64_t rows, int64_t inputs, int64_t outputs);
using Attend = void (*)(const Heads& heads);
using Activate = void (*)(const float* pairs, float* out, int64_t count, float slope, float cubic);
using ProductsWith = const Products& (*)(const Matrix& w, int64_t bits, int64_t rows);
struct Level {
  const char* name;
  bool is_there;
  Panels panels[5];  // by Kind
  Dots dots;
  Attend attend;
  Activate gate;
  ProductsWith integers;  // for codes; null: they become floats
};

// Best last.
Level* levels() {
#define AT_LEVEL(name, code, is_there, integers)                                                              \
  {#name,                                                                                                     \
   is_there,                                                                                                  \
   {code::panels<NUMBERS>, code::panels<HALVES>, code::panels<NIBBLES>, code::panels<SIXES>, code::panels<BYTES>}, \
   code::dots,                                                                                                \
   code::attend,                                                                                              \
   code::gate,                                                                                                \
   integers}
#if defined(__x86_64__)
  const Processor has = processor();
#endif
  static Level all[] = {
      AT_LEVEL(portable, portable, true, nullptr),
#if defined(__x86_64__)
      AT_LEVEL(avx2, avx2, has.avx2, avx2::plain::products_with),
#ifdef HAS_AVXVNNI
      AT_LEVEL(avxvnni, avx2, has.avxvnni, avx2::vnni::products_with),
#endif
      AT_LEVEL(avx512, avx512, has.avx512, avx2::plain::products_with),
      AT_LEVEL(vnni, avx512, has.vnni, avx512::vnni::products_with),
#endif
      {nullptr, false, {}, nullptr, nullptr, nullptr, nullptr},
  };
#undef AT_LEVEL
  return all;
}

std::atomic<const Level*> chosen{nullptr};

// Parts of a job, `share` at a time.
template <class Part>
void over(int64_t count, int64_t share, const Part& part) {
  share = std::max<int64_t>(1, share);
  pool().run((count + share - 1) / share,
             [&](int64_t number) { part(number * share, std::min(count, (number + 1) * share)); });
}

// Parts of panels. Small ones: a thread that is late, or not there, leaves its share to the others.
template <class Part>
void over_panels(int64_t outputs, const Part& part) {
  const int64_t count = (outputs + PANEL - 1) / PANEL;
  over(count, count / 32, part);
}

void multiply_floats(const Level& level, const float* x, const Matrix& w, const float* down, float* y, int64_t rows,
                     int64_t outputs) {
  Rows in{x, nullptr, down, w.inputs, w.has_codes() ? w.groups() : 0, w.rank};
  thread_local std::vector<float> totals;
  if (w.minimums.are_there()) {
    totals.resize(rows * in.groups);
    for (int64_t at = 0; at < rows * in.groups; ++at) {
      float total = 0;
      for (int64_t i = 0; i < w.group; ++i) total += x[at * w.group + i];
      totals[at] = total;
    }
    in.totals = totals.data();
  }
  over_panels(outputs, [=, &w, &level](int64_t first, int64_t last) {
    level.panels[w.kind](w, in, y, rows, outputs, first, last);
  });
}

void multiply_integers(const Products& by, const float* x, const Matrix& w, const float* down, float* y, int64_t rows,
                       int64_t outputs, float most) {
  constexpr int64_t CODED = 8192;  // inputs that a thread makes codes of
  const int64_t groups = w.groups(), block = by.rows, blocks = (rows + block - 1) / block;
  thread_local std::vector<int8_t> codes;
  thread_local std::vector<float> scales, totals;
  thread_local std::vector<int32_t> first;
  codes.resize(rows * w.inputs * by.words), scales.resize(rows * groups);
  totals.resize(rows * groups), first.resize(rows * groups);
  const CodedRows all{codes.data(), scales.data(), totals.data(), first.data()};
  const auto rows_of = [=](int64_t b) { return std::min(block, rows - b * block); };
  const int64_t share = std::max<int64_t>(1, CODED / (w.group * rows_of(0))), shares = (groups + share - 1) / share;
  pool().run(blocks * shares, [&](int64_t part) {
    const int64_t b = part / shares, begin = part % shares * share;
    by.code(w, x + b * block * w.inputs, rows_of(b), begin, std::min(groups, begin + share), most,
            all.from(b * block, w.inputs, groups, by.words));
  });
  over_panels(outputs, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Matrix here = w.panel(p);
      const int64_t width = std::min(PANEL, outputs - p * PANEL);
      for (int64_t b = 0; b < blocks; ++b) {
        const CodedRows in = all.from(b * block, w.inputs, groups, by.words);
        const float* lowered = down + b * block * w.rank;
        float *to = y + b * block * outputs + p * PANEL, padded[BLOCK * PANEL];
        if (width == PANEL) {
          by.panel(here, in, rows_of(b), lowered, to, outputs);
          continue;
        }
        by.panel(here, in, rows_of(b), lowered, padded, PANEL);
        for (int64_t r = 0; r < rows_of(b); ++r) std::memcpy(to + r * outputs, padded + r * PANEL, width * sizeof(float));
      }
    }
  });
}

// `a` [rank][I]: the inputs' half of the matrix's low-rank pair. `bits` of the inputs, where codes are multiplied as
// integers: 8, 16, or 32 for floats.
void multiply(const float* x, const Matrix& w, const float* a, float* y, int64_t rows, int64_t outputs, int64_t bits) {
  const Level& level = *chosen.load();
  // Rows of zeros at the end, where a chunk of a prompt or a step has no more tokens, are not multiplied.
  const auto is_zero = [](float one) { return one == 0; };
  int64_t used = rows;
  while (used > 0 && std::all_of(x + (used - 1) * w.inputs, x + used * w.inputs, is_zero)) --used;
  std::fill(y + used * outputs, y + rows * outputs, 0.0f);
  if ((rows = used) == 0) return;
  thread_local std::vector<float> down;
  if (w.rank != 0) {
    down.resize(rows * w.rank);
    level.dots(x, a, down.data(), rows, w.inputs, w.rank);
  }
  const bool is_whole = level.integers != nullptr && w.has_codes() && w.group <= LARGEST && (bits == 8 || bits == 16);
  if (is_whole) {
    const float most = bits == 8 ? 127 : 32512;  // of a code: both halves of the larger one fit a byte
    return multiply_integers(level.integers(w, bits, rows), x, w, down.data(), y, rows, outputs, most);
  }
  multiply_floats(level, x, w, down.data(), y, rows, outputs);
}

}  // namespace
