"""Costs read from the text of a compiled program, worked out by hand."""

import pytest

from pasta_jax.device.devices import CHIPS
from pasta_jax.tpu import hlo
from pasta_jax.tpu.program import Collective, collectives, kernel_costs, roofline_ms

# A loop over three layers, whose weights a fusion slices out of their stack, inside a loop of unknown length. S(1) is
# the core's own memory.
TEXT = """\
HloModule jit_run, is_scheduled=true

%tiled (q: bf16[3,64,32]) -> bf16[3,64,32] {
  %q = bf16[3,64,32]{2,1,0:T(16,128)(2,1)} parameter(0)
  ROOT %copy.1 = bf16[3,64,32]{2,1,0:T(8,128)(2,1)} copy(%q)
}

%sliced (p: bf16[3,64,32], at: s32[]) -> bf16[64,32] {
  %p = bf16[3,64,32]{2,1,0:T(8,128)(2,1)} parameter(0)
  %t.0 = bf16[3,64,32]{2,1,0:T(8,128)(2,1)} fusion(%p), kind=kLoop, calls=%tiled
  %at = s32[]{:T(128)S(6)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %s.1 = bf16[1,64,32]{2,1,0:T(8,128)(2,1)} dynamic-slice(%t.0, %at, %zero, %zero), dynamic_slice_sizes={1,64,32}
  ROOT %bitcast.1 = bf16[64,32]{1,0:T(8,128)(2,1)} bitcast(%s.1)
}

%product (w: bf16[3,64,32], l: s32[], x: bf16[8,32]) -> bf16[8,64] {
  %w = bf16[3,64,32]{2,1,0:T(8,128)(2,1)} parameter(0)
  %l = s32[]{:T(128)S(6)} parameter(1)
  %x = bf16[8,32]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %fusion.1 = bf16[64,32]{1,0:T(8,128)(2,1)} fusion(%w, %l), kind=kLoop, calls=%sliced
  ROOT %convolution.1 = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} convolution(%x, %fusion.1), dim_labels=bf_oi->bf
}

%written (pool: bf16[100,64], row: s32[8], new: bf16[8,64]) -> bf16[100,64] {
  %pool = bf16[100,64]{1,0:T(8,128)(2,1)} parameter(0)
  %row = s32[8]{0:T(128)S(1)} parameter(1)
  %new = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  ROOT %scatter.1 = bf16[100,64]{1,0:T(8,128)(2,1)} scatter(%pool, %row, %new), update_window_dims={1}, to_apply=%set
}

%layer (carry: (s32[], bf16[8,32], bf16[100,64])) -> (s32[], bf16[8,32], bf16[100,64]) {
  %carry = (s32[]{:T(128)}, bf16[8,32]{1,0:T(8,128)(2,1)S(1)}, bf16[100,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%carry), index=0
  %h = bf16[8,32]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%carry), index=1
  %kv = bf16[100,64]{1,0:T(8,128)(2,1)} get-tuple-element(%carry), index=2
  %stack = bf16[3,64,32]{2,1,0:T(8,128)(2,1)} get-tuple-element(%carry), index=3
  %fusion.2 = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} fusion(%stack, %i, %h), kind=kOutput, calls=%product
  %rows = s32[8]{0:T(128)S(1)} iota(), iota_dimension=0
  %fusion.3 = bf16[100,64]{1,0:T(8,128)(2,1)} fusion(%kv, %rows, %fusion.2), kind=kCustom, calls=%written
  ROOT %tuple.1 = (s32[], bf16[8,32], bf16[100,64]) tuple(%i, %h, %fusion.3)
}

%fewer (carry.1: (s32[], bf16[8,32], bf16[100,64])) -> pred[] {
  %layers = s32[]{:T(128)} constant(3)
  %carry.1 = (s32[]{:T(128)}, bf16[8,32]{1,0:T(8,128)(2,1)S(1)}, bf16[100,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%carry.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %layers), direction=LT
}

%step (state: (s32[], bf16[8,32], bf16[100,64])) -> (s32[], bf16[8,32], bf16[100,64]) {
  %state = (s32[]{:T(128)}, bf16[8,32]{1,0:T(8,128)(2,1)S(1)}, bf16[100,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %while.1 = (s32[], bf16[8,32], bf16[100,64]) while(%state), condition=%fewer, body=%layer
  %logits = f32[8,500]{1,0:T(8,128)} get-tuple-element(%state), index=3
  %copy-start.1 = (f32[8,500]{1,0:T(8,128)S(1)}, f32[8,500]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%logits)
  %copy-done.1 = f32[8,500]{1,0:T(8,128)S(1)} copy-done(%copy-start.1)
  ROOT %tuple.2 = (s32[], bf16[8,32], bf16[100,64]) tuple(%while.1)
}

%goes (state.1: (s32[], bf16[8,32], bf16[100,64])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, bf16[8,32]{1,0:T(8,128)(2,1)S(1)}, bf16[100,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %live = pred[]{:T(512)} get-tuple-element(%state.1), index=0
  ROOT %and.1 = pred[]{:T(512)} and(%live, %live)
}

ENTRY %main (arguments: (s32[], bf16[8,32], bf16[100,64])) -> (s32[], bf16[8,32], bf16[100,64]) {
  %arguments = (s32[]{:T(128)}, bf16[8,32]{1,0:T(8,128)(2,1)S(1)}, bf16[100,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %kept = f32[50]{0:T(128)} get-tuple-element(%arguments), index=4
  %copy.9 = f32[50]{0:T(128)} copy(%kept)
  ROOT %while.2 = (s32[], bf16[8,32], bf16[100,64]) while(%arguments), condition=%goes, body=%step
}
"""
LAYER = hlo.Cost(2 * 8 * 64 * 32, 64 * 32 * 2 + 8 * 64 * 2)  # one layer's weights, and the rows written to the pool


def calling(shapes: dict[str, str], call: str) -> str:
    """The text of a program that makes one call on parameters of these shapes."""
    operands = "".join(
        f"  %{name} = {shape}{{0:T(128)}} parameter({at})\n" for at, (name, shape) in enumerate(shapes.items())
    )
    return f"ENTRY %main (q: bf16[8]) -> bf16[8] {{\n{operands}  ROOT %{call}\n}}\n"


def test_a_step_is_its_layers_and_what_is_read_once():
    expected = LAYER.times(3) + hlo.Cost(0.0, 8 * 500 * 4)
    assert hlo.cost_of_step(TEXT, {}) == expected
    assert hlo.cost(TEXT, {}) == expected + hlo.Cost(0.0, 2 * 50 * 4)


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        ("bf16[8,64]{1,0} convolution(%x, %y), dim_labels=bf_oi->bf", 2 * 8 * 64 * 32),
        # Each of 3 x 5 places of the result meets one place of the kernel; the others are padding.
        (
            "bf16[8,3,5,64]{3,2,1,0} convolution(%a, %b), window={size=3x5 pad=2_2x4_4 rhs_reversal=1x1}, "
            "dim_labels=bf01_01oi->b01f",
            2 * 8 * 3 * 5 * 64 * 32,
        ),
        # A batch of four products: along the batch's axis, each place of the result meets its own.
        ("f32[4,8,64]{2,1,0} convolution(%c, %d), window={size=4 stride=3 pad=0_0 lhs_dilate=4}, "
         "dim_labels=0bf_0oi->0bf", 4 * 2 * 8 * 64 * 32),
        ("f32[8,64]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={1}", 2 * 8 * 64 * 32),
    ],
)  # fmt: skip
def test_products_count_pairs_that_meet(line, flops):
    shapes = {"x": "8,32", "y": "64,32", "a": "8,32,1,1", "b": "3,5,64,32", "c": "4,8,32", "d": "4,64,32"}
    text = calling({name: f"bf16[{dims}]" for name, dims in shapes.items()}, f"r = {line}")
    assert hlo.cost(text, {}).flops == flops


def test_a_call_of_the_pool_kernel_costs_the_blocks_in_use():
    """8 lanes of 1000 slots in use, in blocks of 512: two each, of keys and of values."""
    shapes = {"slot": "s32[8,4,4096]", "q": "bf16[8,2,24,256]", "k": "bf16[28,8,2,4096,256]"}
    call = 'bf16[8,2,24,256]{3,2,1,0:T(8,128)S(1)} custom-call(%slot, %q, %k, %k), custom_call_target="tpu_custom_call"'
    text = calling(shapes, f"pool_kernel.2 = {call}")
    read = 8 * 1024
    queries = 8 * 2 * 24 * 256 * 2
    assert hlo.cost(text, kernel_costs(1000)) == hlo.Cost(
        4.0 * read * 2 * 24 * 256, 2 * read * 2 * 256 * 2 + read * 16 + queries
    )
    assert hlo.cost(text, kernel_costs(9000)).bytes > 4 * hlo.cost(text, kernel_costs(1000)).bytes - 4 * queries


def test_a_call_of_attention_by_blocks_costs_the_pairs_of_blocks():
    """Four blocks of 64 tokens: ten pairs, of each four products of 64 x 64 x 32 for two rows' three heads."""
    shapes = {"pairs": "s32[10]", "window": "s32[1]", "row": "s32[2,6,256]", "key": "s32[2,256,6]"}
    shapes |= {"q": "bf16[2,3,1,256,32]", "k": "bf16[2,3,256,32]"}
    used = "%pairs, %pairs, %pairs, %pairs, %window, %row, %key, %q, %k, %k"
    call = f'bf16[2,3,256,32]{{0:T(8)S(1)}} custom-call({used}), custom_call_target="tpu_custom_call"'
    found = hlo.cost(calling(shapes, f"keys_kernel.7 = {call}"), kernel_costs(1))
    assert found.flops == 10 * 4 * 2 * 64 * 64 * 32 * 2 * 3
    assert found.bytes == 4 * (4 * 10 + 1 + 2 * 2 * 6 * 256) + 3 * 2 * (2 * 3 * 256 * 32)


def test_the_estimate_is_the_slower_of_products_and_memory():
    chip = CHIPS["TPU v5 lite"]
    assert roofline_ms(hlo.Cost(197e12, 0), chip) == pytest.approx(1000)
    assert roofline_ms(hlo.Cost(197e12, 1600e9), chip) == pytest.approx(2000)


def test_a_collective_counts_once_with_the_bytes_of_its_result():
    """The compiler writes one that runs beside a product as three instructions, and lists operands before results."""
    text = """\
  %all-gather.76 = bf16[192,32]{0,1:T(8,128)(2,1)} all-gather(%p.6), channel_id=17, dimensions={1}
  %all-gather.78 = bf16[192,32]{0,1:T(8,128)(2,1)S(1)} all-gather(%p.9), channel_id=17, dimensions={1}
  %all-gather.80 = bf16[192,32]{0,1:T(8,128)(2,1)} all-gather(%p.0), channel_id=17, dimensions={1}
  %sum = (bf16[32]{0:T(256)}, f32[]{:T(128)}) all-reduce(%a, %b), channel_id=9, metadata={op_name="jit(f)/Layer/out"}
  %passes = (bf16[192,8]{0,1:T(8,128)S(1)}, bf16[192,8]{0,1:T(8,128)S(1)}, u32[]{:S(2)}, u32[]{:S(2)}) \
collective-permute-start(%slice.199), channel_id=97, source_target_pairs={{0,0},{2,2}}
  %passed = bf16[192,8]{0,1:T(8,128)(2,1)S(1)} collective-permute-done(%passes), metadata={op_name="jit(f)/x"}
  %alone = f32[4]{0:T(128)} all-reduce-start(%c), replica_groups={{0,1}}
  %again = f32[4]{0:T(128)} all-reduce-start(%d), replica_groups={{0,1}}
"""
    gathers, total, passes, *alone = collectives(text)
    assert (gathers, total) == (Collective("all-gather", 192 * 32 * 2, False), Collective("all-reduce", 68, True))
    assert passes == Collective("collective-permute", 192 * 8 * 2, False)
    assert alone == [Collective("all-reduce", 16, False)] * 2
