"""What onnxruntime's own operators take, as far as their replacements were written for it.

Versions of these operators have no numbers: a newer onnxruntime adds attributes and inputs to what
has the same name, and to pass over one would give another result.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mcfuser.graph.rewrite.body import NodeBody

MICROSOFT = "com.microsoft"
MANY = 1 << 16
"""The number of inputs of an operator that takes any number."""

_REVIEWED = {
    "Attention": (
        7,
        "do_rotary mask_filter_value num_heads past_present_share_buffer qkv_hidden_sizes "
        "rotary_embedding_dim scale unidirectional",
    ),
    "BiasAdd": (3, ""),
    "BiasGelu": (2, ""),
    "BiasSplitGelu": (2, ""),
    "DequantizeLinear": (3, "axis"),
    "DynamicQuantizeLSTM": (
        12,
        "activation_alpha activation_beta activations clip direction hidden_size input_forget",
    ),
    "DynamicQuantizeMatMul": (5, ""),
    "EmbedLayerNormalization": (9, "epsilon mask_index_type"),
    "ExpandDims": (2, ""),
    "FastGelu": (2, ""),
    "FusedConv": (
        4,
        "activation activation_params auto_pad dilations group kernel_shape pads strides",
    ),
    "FusedGemm": (
        3,
        "activation activation_alpha activation_beta activation_gamma alpha beta transA transB",
    ),
    "FusedMatMul": (2, "alpha transA transB transBatchA transBatchB"),
    "GatherBlockQuantized": (4, "bits block_size gather_axis quantize_axis"),
    "GatherND": (2, ""),
    "Gelu": (1, ""),
    "GridSample": (2, "align_corners mode padding_mode"),
    "GroupNorm": (3, "activation channels_last epsilon groups"),
    "GroupQueryAttention": (
        17,
        "causal do_rotary k_norm_epsilon k_quant_type kv_cache_bit_width kv_num_heads "
        "local_window_size num_heads past_present_share_buffer q_norm_epsilon qk_norm_epsilon "
        "qk_output rotary_interleaved scale sliding_window_cache smooth_softmax softcap "
        "v_quant_type",
    ),
    "MatMulBnb4": (3, "K N block_size quant_type training_mode transB"),
    "MatMulIntegerToFloat": (7, ""),
    "MatMulNBits": (6, "K N accuracy_level bits block_size weight_prepacked"),
    "MoE": (
        8,
        "activation_alpha activation_beta activation_type k normalize_routing_weights "
        "swiglu_fusion swiglu_limit use_sparse_mixer",
    ),
    "MultiHeadAttention": (10, "mask_filter_value num_heads scale unidirectional"),
    "NhwcConv": (3, "auto_pad channels_last dilations group kernel_shape pads strides"),
    "Pad": (3, "mode"),
    "QAttention": (
        9,
        "do_rotary mask_filter_value num_heads past_present_share_buffer scale unidirectional",
    ),
    "QEmbedLayerNormalization": (18, "epsilon"),
    "QGemm": (9, "alpha transA transB"),
    "QLinearAdd": (8, ""),
    "QLinearAveragePool": (
        5,
        "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides",
    ),
    "QLinearConcat": (MANY, "axis"),
    "QLinearGlobalAveragePool": (5, "channels_last"),
    "QLinearLeakyRelu": (5, "alpha"),
    "QLinearMul": (8, ""),
    "QLinearSigmoid": (5, ""),
    "QLinearSoftmax": (5, "axis opset"),
    "QLinearWhere": (9, ""),
    "QMoE": (
        21,
        "accuracy_level activation_alpha activation_beta activation_type block_size "
        "expert_weight_bits fc1_expert_weight_bits fc2_expert_weight_bits fc3_expert_weight_bits k "
        "normalize_routing_weights quant_type swiglu_fusion swiglu_limit use_sparse_mixer "
        "weights_prepacked",
    ),
    "QuantizeLinear": (3, "axis"),
    "QuickGelu": (1, "alpha"),
    "Range": (3, ""),
    "RotaryEmbedding": (4, "interleaved is_packed_batching num_heads rotary_embedding_dim scale"),
    "SkipGroupNorm": (5, "activation channels_last epsilon groups"),
    "SkipLayerNormalization": (5, "epsilon"),
    "SkipSimplifiedLayerNormalization": (4, "epsilon"),
    "TransposeMatMul": (2, "alpha transA transB"),
    "Trilu": (2, "upper"),
}
REVIEWED: Mapping[str, tuple[int, frozenset[str]]] = MappingProxyType(
    {name: (count, frozenset(words.split())) for name, (count, words) in _REVIEWED.items()}
)
"""By the name of an operator: how many inputs it may have, and the names of its attributes. These
are those of onnxruntime 1.31, and GroupQueryAttention's of 1.32, which gets the mark of
rewrite.grouped besides."""


def check_reviewed(body: NodeBody) -> None:
    """Raises ModelError where a node has an attribute or an input that its replacement was not
    written for."""
    if body.node.domain != MICROSOFT or body.node.op_type not in REVIEWED:
        return
    count, names = REVIEWED[body.node.op_type]
    for attribute in body.node.attribute:
        if attribute.name not in names:
            raise body.refusal(f"its attribute '{attribute.name}' is not known here")
    for position, name in enumerate(body.node.input):
        if name and position >= count:
            raise body.refusal(f"its input number {position}, '{name}', is not known here")
