"""The table of rewrites: which operator is replaced, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import TensorProto

from mcfuser.graph.rewrite import (
    activation,
    fourier,
    grouped,
    learned,
    microsoft,
    movement,
    normalization,
    qlinear,
    quantized,
    recurrent,
    rotary,
    sampling,
    sequence,
)
from mcfuser.graph.rewrite.attention import onnx_attention
from mcfuser.graph.rewrite.body import NARROW, NodeBody

Rewrite = Callable[[NodeBody], Sequence[str | None] | None]
"""Writes a node's replacement into its body.

It gives the name of the value that stands for each output, None for an output that nobody reads.
It gives no sequence at all where the node stays as it is, because TVM imports that form rightly.
Raises ModelError where the node cannot be replaced.
"""

_MICROSOFT, _LEARNED = "com.microsoft", "ai.onnx.ml"
_BRAIN = TensorProto.BFLOAT16

REWRITES: Mapping[tuple[str, str], Rewrite] = {
    ("", "Acosh"): activation.widened(*NARROW),
    ("", "Asinh"): activation.widened(*NARROW),
    ("", "Atan"): activation.widened(*NARROW),
    ("", "Atanh"): activation.widened(*NARROW),
    ("", "Attention"): onnx_attention,
    ("", "Cast"): quantized.cast,
    ("", "Celu"): activation.celu,
    ("", "Col2Im"): sampling.overlapping_sum,
    ("", "ConcatFromSequence"): sequence.concatenation,
    ("", "ConvInteger"): quantized.integer_convolution,
    ("", "ConvTranspose"): sampling.transposed_convolution,
    ("", "Cosh"): activation.widened(*NARROW),
    ("", "DFT"): fourier.transform,
    ("", "DequantizeLinear"): quantized.dequantized,
    ("", "Dropout"): activation.dropout,
    ("", "Elu"): activation.widened(*NARROW),
    ("", "DynamicQuantizeLinear"): quantized.quantize_as_it_comes,
    ("", "EyeLike"): movement.unit_matrix,
    ("", "GroupNormalization"): normalization.grouped,
    ("", "GRU"): recurrent.gru,
    ("", "Identity"): sequence.same,
    ("", "IsInf"): activation.is_infinite,
    ("", "IsNaN"): activation.widened(_BRAIN),
    ("", "LayerNormalization"): normalization.layer_normalization,
    ("", "LpNormalization"): normalization.by_norm,
    ("", "LpPool"): activation.widened(*NARROW),
    ("", "LRN"): activation.widened(*NARROW),
    ("", "LSTM"): recurrent.lstm,
    ("", "MatMulInteger"): quantized.integer_product,
    ("", "MeanVarianceNormalization"): activation.widened(*NARROW),
    ("", "Mod"): activation.widened(_BRAIN),
    ("", "OneHot"): movement.one_hot,
    ("", "Pow"): activation.power,
    ("", "QLinearConv"): quantized.convolution,
    ("", "QLinearMatMul"): quantized.product,
    ("", "QuantizeLinear"): quantized.quantize,
    ("", "ReduceL1"): activation.widened(*NARROW),
    ("", "ReduceL2"): activation.widened(*NARROW),
    ("", "ReduceLogSum"): activation.widened(*NARROW),
    ("", "ReduceLogSumExp"): activation.widened(*NARROW),
    ("", "ReduceMax"): activation.extreme_of_bools,
    ("", "ReduceMin"): activation.extreme_of_bools,
    ("", "ReduceSumSquare"): activation.widened(*NARROW),
    ("", "Resize"): sampling.resize,
    ("", "ReverseSequence"): movement.reverse_sequence,
    ("", "RMSNormalization"): normalization.rms_normalization,
    ("", "RNN"): recurrent.rnn,
    ("", "RoiAlign"): sampling.roi_align,
    ("", "RotaryEmbedding"): rotary.onnx_rotary,
    ("", "Selu"): activation.widened(*NARROW),
    ("", "SequenceAt"): sequence.at,
    ("", "SequenceConstruct"): sequence.construct,
    ("", "SequenceEmpty"): sequence.empty,
    ("", "SequenceErase"): sequence.erase,
    ("", "SequenceInsert"): sequence.insert,
    ("", "SequenceLength"): sequence.length,
    ("", "SimplifiedLayerNormalization"): normalization.simplified,
    ("", "Sinh"): activation.widened(*NARROW),
    ("", "SplitToSequence"): sequence.parts,
    ("", "STFT"): fourier.short_time,
    ("", "TensorScatter"): movement.tensor_scatter,
    ("", "ThresholdedRelu"): activation.widened(*NARROW),
    (_LEARNED, "ArrayFeatureExtractor"): learned.features,
    (_LEARNED, "Binarizer"): learned.binarizer,
    (_LEARNED, "LinearClassifier"): learned.linear_classifier,
    (_LEARNED, "LinearRegressor"): learned.linear_regressor,
    (_LEARNED, "Normalizer"): learned.normalizer,
    (_LEARNED, "Scaler"): learned.scaler,
    (_LEARNED, "ZipMap"): learned.maps,
    (_MICROSOFT, "Attention"): microsoft.packed_attention,
    (_MICROSOFT, "BiasGelu"): activation.bias_gelu,
    (_MICROSOFT, "DequantizeLinear"): quantized.renamed,
    (_MICROSOFT, "DynamicQuantizeMatMul"): quantized.dynamic_product,
    (_MICROSOFT, "DynamicQuantizeLSTM"): recurrent.dynamic_lstm,
    (_MICROSOFT, "EmbedLayerNormalization"): normalization.embedding,
    (_MICROSOFT, "FastGelu"): activation.fast_gelu,
    (_MICROSOFT, "FusedConv"): activation.fused_convolution,
    (_MICROSOFT, "FusedGemm"): activation.fused_gemm,
    (_MICROSOFT, "FusedMatMul"): activation.fused_product,
    (_MICROSOFT, "Gelu"): activation.gelu,
    (_MICROSOFT, "GroupQueryAttention"): grouped.group_query_attention,
    (_MICROSOFT, "MatMulIntegerToFloat"): quantized.floating_product,
    (_MICROSOFT, "MatMulNBits"): quantized.narrow_product,
    (_MICROSOFT, "MultiHeadAttention"): microsoft.multi_head_attention,
    (_MICROSOFT, "QGemm"): qlinear.product,
    (_MICROSOFT, "QLinearAdd"): quantized.elementwise("Add", 2),
    (_MICROSOFT, "QLinearAveragePool"): qlinear.pooling,
    (_MICROSOFT, "QLinearConcat"): qlinear.concatenation,
    (_MICROSOFT, "QLinearGlobalAveragePool"): qlinear.whole_pooling,
    (_MICROSOFT, "QLinearLeakyRelu"): quantized.elementwise("LeakyRelu", 1, alpha=0.01),
    (_MICROSOFT, "QLinearMul"): quantized.elementwise("Mul", 2),
    (_MICROSOFT, "QLinearSigmoid"): quantized.elementwise("Sigmoid", 1),
    (_MICROSOFT, "QLinearSoftmax"): qlinear.softmax,
    (_MICROSOFT, "QLinearWhere"): qlinear.choice,
    (_MICROSOFT, "QuantizeLinear"): quantized.renamed,
    (_MICROSOFT, "QuickGelu"): activation.quick_gelu,
    (_MICROSOFT, "RotaryEmbedding"): rotary.microsoft_rotary,
    (_MICROSOFT, "SkipLayerNormalization"): normalization.skip,
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): normalization.skip_simplified,
}
"""By domain and name of an operator; ONNX's own domain is empty."""
