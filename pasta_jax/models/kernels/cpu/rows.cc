// A few rows' products with large matrices, and their attention to a pool, for decoding on the CPU; called by XLA.
//
// A decoding step reads every weight of a model for each of its few rows. Here they are read once for all rows. A
// matrix is packed in panels of 32 outputs, [O/32][I][32]: a panel is one run of memory, and the sums of its 32 outputs
// stay in registers for up to 8 rows while it is read. Weights may be bfloat16, or codes of 8 or 4 bits, decoded there. A sum
// adds its products in the order of the inputs, whatever the number of rows and of threads, so a row's result doesn't
// depend on its neighbours.
//
// Attention goes through the slots that a row sees, and no others: XLA's would compute all rows of all lanes with the
// slots of the fullest one.
//
// level.h is included once for each instruction set; the machine's best is chosen when the library is loaded.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "operands.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

#define TOGETHER inline __attribute__((always_inline))

#define TARGET
#define LEVEL portable  // SSE2 or NEON: what every machine of the architecture has
#define LANES 4
#define SUMS 12
#include "level.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define LEVEL avx2
#define LANES 8
#define SUMS 12
#include "level.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define LEVEL avx512
#define LANES 16
#define SUMS 16
#include "level.h"
#endif

namespace {

namespace ffi = xla::ffi;

using Panels = void (*)(const Matrix& w, const Rows& in, float* y, int64_t rows, int64_t outputs, int64_t first,
                        int64_t last);
using Dots = void (*)(const float* x, const float* matrix, float* y, int64_t rows, int64_t inputs, int64_t outputs);
using Attend = void (*)(const Heads& heads);
struct Level {
  const char* name;
  bool is_there;
  Panels panels[4];  // by Kind
  Dots dots;
  Attend attend;
};

// Best last.
Level* levels() {
#define AT_LEVEL(name, is_there)                                                                             \
  {#name,                                                                                                    \
   is_there,                                                                                                 \
   {name::panels<NUMBERS>, name::panels<BYTES>, name::panels<NIBBLES>, name::panels<HALVES>},                \
   name::dots,                                                                                               \
   name::attend}
  static Level all[] = {
      AT_LEVEL(portable, true),
#if defined(__x86_64__)
      AT_LEVEL(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")),
      AT_LEVEL(avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")),
#endif
      {nullptr, false, {}, nullptr, nullptr},
  };
#undef AT_LEVEL
  return all;
}

std::atomic<const Level*> chosen{nullptr};

// `a` [rank][I]: the inputs' half of the matrix's low-rank pair.
void multiply(const float* x, const Matrix& w, const float* a, float* y, int64_t rows, int64_t outputs) {
  const Level* level = chosen.load();
  Rows in{x, nullptr, nullptr, w.inputs, w.has_codes() ? w.inputs / w.group : 0, w.rank};
  thread_local std::vector<float> totals, down;
  if (w.has_minimums()) {
    totals.resize(rows * in.groups);
    for (int64_t at = 0; at < rows * in.groups; ++at) {
      float total = 0;
      for (int64_t i = 0; i < w.group; ++i) total += x[at * w.group + i];
      totals[at] = total;
    }
    in.totals = totals.data();
  }
  if (w.rank != 0) {
    down.resize(rows * w.rank);
    level->dots(x, a, down.data(), rows, w.inputs, w.rank);
    in.down = down.data();
  }
  const int64_t count = (outputs + PANEL - 1) / PANEL;
  // Small parts: a thread that is late, or not there, leaves its share to the others.
  const int64_t share = std::max<int64_t>(1, count / 32);
  pool().run((count + share - 1) / share, [=, &w](int64_t part) {
    level->panels[w.kind](w, in, y, rows, outputs, part * share, std::min(count, (part + 1) * share));
  });
}

using Dimensions = ffi::Span<const int64_t>;

ffi::Error unfit() {
  return ffi::Error::InvalidArgument("pasta_jax: rows, panels and result don't fit; pack the matrix as calls.py does");
}

bool are(Dimensions sizes, int64_t first, int64_t second, int64_t third) {
  return sizes[0] == first && sizes[1] == second && sizes[2] == third;
}

ffi::Error product(ffi::BufferR2<ffi::F32> x, ffi::AnyBuffer w, ffi::ResultBufferR2<ffi::F32> y) {
  const auto xs = x.dimensions(), ws = w.dimensions(), ys = y->dimensions();
  const bool is_half = w.element_type() == ffi::BF16;
  if (xs[0] != ys[0] || ws.size() != 3 || !(is_half || w.element_type() == ffi::F32) ||
      !are(ws, (ys[1] + PANEL - 1) / PANEL, xs[1], PANEL)) {
    return unfit();
  }
  Matrix matrix{};
  matrix.kind = is_half ? HALVES : NUMBERS;
  matrix.numbers = static_cast<const float*>(w.untyped_data());
  matrix.halves = static_cast<const uint16_t*>(w.untyped_data());
  matrix.inputs = xs[1];
  multiply(x.typed_data(), matrix, nullptr, y->typed_data(), xs[0], ys[1]);
  return ffi::Error::Success();
}

// `minimums`, `factors`, `floors`, `a` and `b` are empty where the matrix has none.
ffi::Error coded_product(ffi::BufferR2<ffi::F32> x, ffi::AnyBuffer codes, ffi::AnyBuffer scales,
                         ffi::AnyBuffer minimums, ffi::BufferR3<ffi::F32> factors, ffi::BufferR3<ffi::F32> floors,
                         ffi::BufferR2<ffi::F32> a, ffi::BufferR3<ffi::F32> b, ffi::ResultBufferR2<ffi::F32> y) {
  const auto xs = x.dimensions(), ss = scales.dimensions(), ys = y->dimensions(), cs = codes.dimensions();
  const auto fs = factors.dimensions();
  const bool is_small = factors.element_count() != 0;
  const auto type = is_small ? ffi::S8 : ffi::F32;
  const int64_t panels = (ys[1] + PANEL - 1) / PANEL, inputs = xs[1], rank = a.dimensions()[0];
  const bool is_narrow = codes.element_type() == ffi::U32;
  if (ss.size() != 3 || minimums.dimensions().size() != 3 || scales.element_type() != type ||
      (minimums.element_count() != 0 && minimums.element_type() != type) ||
      (is_small && (fs[1] < 1 || inputs % fs[1] != 0 || ss[1] % fs[1] != 0 || !are(fs, panels, fs[1], PANEL) ||
                    (minimums.element_count() != 0 && !are(floors.dimensions(), panels, fs[1], PANEL))))) {
    return unfit();
  }
  if (xs[0] != ys[0] || cs.size() != 3 || !(is_narrow || codes.element_type() == ffi::S8) || ss[1] < 1 ||
      inputs % ss[1] != 0 || inputs / ss[1] % WORD != 0 || !are(ss, panels, ss[1], PANEL) ||
      !are(cs, panels, is_narrow ? inputs / WORD : inputs, PANEL) ||
      !(minimums.element_count() == 0 || are(minimums.dimensions(), panels, ss[1], PANEL)) ||
      !(rank == 0 || (a.dimensions()[1] == inputs && are(b.dimensions(), panels, rank, PANEL)))) {
    return unfit();
  }
  Matrix matrix{};
  matrix.kind = is_narrow ? NIBBLES : BYTES;
  matrix.bytes = static_cast<const int8_t*>(codes.untyped_data());
  matrix.nibbles = static_cast<const uint32_t*>(codes.untyped_data());
  const bool has_minimums = minimums.element_count() != 0;
  if (is_small) {
    matrix.small_scales = static_cast<const int8_t*>(scales.untyped_data());
    matrix.small_minimums = has_minimums ? static_cast<const int8_t*>(minimums.untyped_data()) : nullptr;
    matrix.factors = factors.typed_data();
    matrix.floors = has_minimums ? floors.typed_data() : nullptr;
    matrix.block = inputs / fs[1];
  } else {
    matrix.scales = static_cast<const float*>(scales.untyped_data());
    matrix.minimums = has_minimums ? static_cast<const float*>(minimums.untyped_data()) : nullptr;
  }
  matrix.up = b.typed_data();
  matrix.inputs = inputs, matrix.group = inputs / ss[1], matrix.rank = rank;
  multiply(x.typed_data(), matrix, a.typed_data(), y->typed_data(), xs[0], ys[1]);
  return ffi::Error::Success();
}

using Queries = ffi::Buffer<ffi::F32, 5>;

// q and out [B, T, K, G, D], k and v [B, K, S, D], see [B, T, S]. The result of a row that sees nothing is zero.
struct Attention {
  const float *q, *k, *v;
  const bool* see;
  float* out;
  int64_t lanes, rows, heads, groups, slots, dims;
  float scale, cap;
};

void attend(const Attention& a) {
  const Attend one = chosen.load()->attend;
  pool().run(a.lanes * a.rows * a.heads, [&](int64_t part) {
    const int64_t row = part / a.heads, lane = row / a.rows, head = part % a.heads;
    const int64_t pool_at = (lane * a.heads + head) * a.slots * a.dims, row_at = part * a.groups * a.dims;
    thread_local std::vector<int32_t> slots;
    thread_local std::vector<float> weights;
    slots.resize(a.slots);
    const bool* see = a.see + row * a.slots;
    const void* first = std::memchr(see, true, a.slots);  // most rows of many lanes see nothing
    int64_t visible = 0;
    for (int64_t s = first == nullptr ? a.slots : static_cast<const bool*>(first) - see; s < a.slots; ++s) {
      slots[visible] = s;
      visible += see[s];
    }
    weights.resize(visible * a.groups);
    one({a.q + row_at, a.k + pool_at, a.v + pool_at, a.out + row_at, slots.data(), weights.data(), visible, a.groups,
         a.dims, a.scale, a.cap});
  });
}

ffi::Error attention(float scale, float cap, Queries q, ffi::BufferR4<ffi::F32> k,
                     ffi::BufferR4<ffi::F32> v, ffi::BufferR3<ffi::PRED> see, ffi::Result<Queries> out) {
  const auto qs = q.dimensions(), ks = k.dimensions(), vs = v.dimensions(), ss = see.dimensions();
  const bool fits = qs[0] == ks[0] && qs[0] == ss[0] && qs[1] == ss[1] && qs[2] == ks[1] && ks[2] == ss[2] &&
                    qs[4] == ks[3] && std::equal(ks.begin(), ks.end(), vs.begin());
  if (!fits || q.element_count() != out->element_count()) {
    return ffi::Error::InvalidArgument("pasta_jax: queries, keys, values and mask don't fit each other");
  }
  attend({q.typed_data(), k.typed_data(), v.typed_data(), see.typed_data(), out->typed_data(), qs[0], qs[1], qs[2],
          qs[3], ks[2], qs[4], scale, cap});
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_attention, attention,
                              ffi::Ffi::Bind()
                                  .Attr<float>("scale")
                                  .Attr<float>("cap")
                                  .Arg<Queries>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::PRED>>()
                                  .Ret<Queries>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_product, product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(pasta_coded_product, coded_product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());

extern "C" {

// Use so many threads from now on. Not while a product runs.
void pasta_threads(int threads) {
  shared_threads.store(threads);
  delete shared_pool.exchange(nullptr);
}

// Use an instruction set by its name, or the best one with an empty name; whether the machine has it.
int pasta_level(const char* name) {
  bool is_found = false;
  for (Level* level = levels(); level->name != nullptr; ++level) {
    if (!level->is_there || (*name != 0 && std::strcmp(name, level->name) != 0)) continue;
    chosen.store(level);
    is_found = true;
  }
  return is_found;
}

// Without XLA, for tests. `sizes`: lanes, rows, heads, groups, slots and dims.
void pasta_attend(const float* q, const float* k, const float* v, const bool* see, float* out, const int64_t* sizes,
                  float scale, float cap) {
  attend({q, k, v, see, out, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], scale, cap});
}

// `kind` 0: numbers, 1: bytes, 2: nibbles, 3: halves; null pointers where there is nothing. With factors, scales and
// minimums are bytes.
void pasta_multiply(const float* x, int kind, const void* weights, const void* scales, const void* minimums,
                    const float* factors, const float* floors, const float* a, const float* b, float* y,
                    const int64_t* sizes) {
  const int64_t rows = sizes[0], inputs = sizes[1], outputs = sizes[2], group = sizes[3], rank = sizes[4];
  const bool is_small = factors != nullptr;
  const Matrix matrix{static_cast<Kind>(kind),
                      static_cast<const float*>(weights),
                      static_cast<const uint16_t*>(weights),
                      static_cast<const int8_t*>(weights),
                      static_cast<const uint32_t*>(weights),
                      is_small ? nullptr : static_cast<const float*>(scales),
                      is_small ? nullptr : static_cast<const float*>(minimums),
                      is_small ? static_cast<const int8_t*>(scales) : nullptr,
                      is_small ? static_cast<const int8_t*>(minimums) : nullptr,
                      factors,
                      floors,
                      b,
                      inputs,
                      group,
                      sizes[5],
                      rank};
  multiply(x, matrix, a, y, rows, outputs);
}

}  // extern "C"

namespace {
const bool is_ready = [] {
  pasta_level("");
  forget_threads_in_children();
  return true;
}();
}  // namespace
