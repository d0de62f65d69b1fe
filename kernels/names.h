// Every kernel of the fat binary: how the host calls it and what it is called there. One list, so
// that the two cannot part.
#pragma once

// clang-format off
#define SLUICE_KERNELS(X)                                             \
  /* gemm.cuh; in the order of GemmRung and GemmForm */               \
  X(kGemmNaiveNn, gemm_naive_nn)                                      \
  X(kGemmNaiveNt, gemm_naive_nt)                                      \
  X(kGemmNaiveTn, gemm_naive_tn)                                      \
  X(kGemmTiledNn, gemm_tiled_nn)                                      \
  X(kGemmTiledNt, gemm_tiled_nt)                                      \
  X(kGemmTiledTn, gemm_tiled_tn)                                      \
  X(kGemmRegisterNn, gemm_register_nn)                                \
  X(kGemmRegisterNt, gemm_register_nt)                                \
  X(kGemmRegisterTn, gemm_register_tn)                                \
  /* gemm_tensor.cuh; in the order of HalfFormat and GemmForm */      \
  X(kGemmTensorFp16Nn, gemm_tensor_fp16_nn)                           \
  X(kGemmTensorFp16Nt, gemm_tensor_fp16_nt)                           \
  X(kGemmTensorFp16Tn, gemm_tensor_fp16_tn)                           \
  X(kGemmTensorBf16Nn, gemm_tensor_bf16_nn)                           \
  X(kGemmTensorBf16Nt, gemm_tensor_bf16_nt)                           \
  X(kGemmTensorBf16Tn, gemm_tensor_bf16_tn)                           \
  /* arrays.cuh */                                                    \
  X(kBiasForward, bias_forward)                                       \
  X(kBiasReluForward, bias_relu_forward)                              \
  X(kReluBackward, relu_backward)                                     \
  X(kColumnSum, column_sum)                                           \
  X(kSplitSum, split_sum)                                             \
  X(kSgdMomentum, sgd_momentum)                                       \
  X(kArrayScale, array_scale)                                         \
  X(kArrayAdd, array_add)                                             \
  X(kWordStore, word_store)                                           \
  /* loss.cuh */                                                      \
  X(kSoftmaxCrossEntropy, softmax_cross_entropy)                      \
  X(kCorrectCount, correct_count)                                     \
  /* norm.cuh */                                                      \
  X(kLayerNormForward, layer_norm_forward)                            \
  X(kLayerNormBackward, layer_norm_backward)                          \
  X(kLayerNormWeightsBackward, layer_norm_weights_backward)           \
  X(kSoftmaxForward, softmax_forward)                                 \
  X(kSoftmaxBackward, softmax_backward)                               \
  /* activation.cuh */                                                \
  X(kGeluForward, gelu_forward)                                       \
  X(kGeluBackward, gelu_backward)                                     \
  /* embedding.cuh */                                                 \
  X(kEmbeddingForward, embedding_forward)                             \
  X(kEmbeddingBackward, embedding_backward)                           \
  X(kPositionBackward, position_backward)                             \
  /* attention.cuh */                                                 \
  X(kAttentionForwardNaive, attention_forward_naive)                  \
  X(kAttentionForward, attention_forward)                             \
  X(kAttentionProducts, attention_products)                           \
  X(kAttentionBackwardQueries, attention_backward_queries)            \
  X(kAttentionBackwardKeys, attention_backward_keys)                  \
  /* convolution.cuh */                                               \
  X(kConvolutionNaive, convolution_naive)                             \
  X(kPatchesGather, patches_gather)                                   \
  X(kPatchesScatter, patches_scatter)                                 \
  X(kMaxPoolForward, max_pool_forward)                                \
  X(kMaxPoolBackward, max_pool_backward)                              \
  /* optimizer.cuh */                                                 \
  X(kAdamw, adamw)                                                    \
  X(kRmsprop, rmsprop)                                                \
  X(kSquareSum, square_sum)                                           \
  X(kNormFinish, norm_finish)                                         \
  X(kNormClip, norm_clip)                                             \
  X(kNotFinite, not_finite)                                           \
  /* cast.cuh */                                                      \
  X(kCastToFp16, cast_to_fp16)                                        \
  X(kCastFromFp16, cast_from_fp16)                                    \
  X(kCastToBf16, cast_to_bf16)                                        \
  X(kCastFromBf16, cast_from_bf16)                                    \
  /* topk.cuh */                                                      \
  X(kTopkHistogram, topk_histogram)                                   \
  X(kTopkPick, topk_pick)                                             \
  X(kTopkCount, topk_count)                                           \
  X(kTopkOffsets, topk_offsets)                                       \
  X(kTopkTake, topk_take)                                             \
  X(kTopkAdd, topk_add)                                               \
  /* lowrank.cuh */                                                   \
  X(kGramSchmidt, gram_schmidt)                                       \
  X(kArrayAddScaled, array_add_scaled)
// clang-format on
