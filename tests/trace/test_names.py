"""Real names of kernels, operators, collectives and groups, and what each is."""

from __future__ import annotations

import pytest

from torchlayout.trace.names import axis, collective, is_communication, kernel_class

GEMM = (
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn",
    "ampere_sgemm_32x32_sliced1x4_tn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>(Params)",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(cublasGemvParamsEx)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(cublasLt::cublasSplitKParams<float>)",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN",
    "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3>(Argument)",
    "triton_tem_fused_mm_3",
    "triton_tem_fused_addmm_7",
    "triton_tem_fused_bmm_1",
    "_kernel_matmul_fp8_row",
    "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u>(float*, float*)",
    "cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*, void const*, float, int, int)",
    "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_execute_kernel_cudnn_infer",
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_scaled_mm",
    "aten::_grouped_mm",
    "aten::mkldnn_linear",
)
ATTENTION = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>",
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>(Params)",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<CollectiveMainloopFwdSm90>>>",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "cudnn_generated_fort_native_sdpa_sm80_flash_bprop_f16_knob_3_64x64x128_4x1x1_kernel0_0",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, __nv_bfloat16, 128>(float)",
    "void cudnn::fusion::convert_dq_to_16bits<false, __nv_bfloat16>(float const*)",
    "_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelINS_26BlockFmhaPipelineQRKSVSAsyncEEEEEvT1_",
    "attn_fwd.kd",
    "bwd_kernel_dk_dv.kd",
    "bwd_kernel_dq.kd",
    "triton_tem_fused_flex_attention_backward_2",
    "_attn_fwd",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
)
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*>>",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, FusedAdamMathFunctor<",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float>>>",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*)",
    "void scaled_upper_triang_masked_softmax_warp_forward<__nv_bfloat16, __nv_bfloat16, float, 11>(float)",
    "triton_poi_fused__scaled_dot_product_flash_attention_transpose_3",
    "triton_poi_fused_addmm_relu_0",
    "triton_red_fused__to_copy_mm_mean_pow_5",
    "triton_per_fused_native_layer_norm_2",
    "triton_for_fused_0",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3, 128, 1>(float*)",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<long, long, unsigned int, 1, 1, -2, true>()",
    "void at::native::vectorized_elementwise_kernel<4, fbgemm_gpu::_float_to_hfp8_gpu(at::Tensor const&, long, long)>",
    "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*, int const*, int*)",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(params_t)",
    "void cudnn::ops::convertTensor_kernel<float, float, __half>(float)",
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_fw_tr_1C11_args<float>)",
    "_layer_norm_bwd_kernel",
    "Memcpy HtoD (Pinned -> Device)",
    "Memset (Device)",
    "aten::silu",
)
OTHER = (
    "void cask_cudnn_infer::computeOffsetsKernel<false, false>(cask_cudnn_infer::ComputeOffsetsParams)",
    "my_location_kernel",
    "spin_kernel(long)",
)
COMMUNICATION = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    "void nvshmemi_transfer_kernel<(nvshmemi_op_t)1>()",
    "void c10d::symmetric_memory::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(float)",
    "multimem_all_gather_kernel<16>",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(RankData*)",
)
CLASSES = {"gemm": GEMM, "attention": ATTENTION, "elementwise": ELEMENTWISE, "other": OTHER}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in CLASSES.items() for name in names])
def test_a_kernel_has_the_class_of_what_it_computes(kind: str, name: str) -> None:
    assert kernel_class(name) == kind
    assert not is_communication(name)


@pytest.mark.parametrize("name", COMMUNICATION)
def test_a_kernel_that_moves_data_between_ranks_is_communication(name: str) -> None:
    assert is_communication(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()", "reduce_scatter"),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL()", "all_reduce"),
        ("ncclDevKernel_Broadcast_RING_LL()", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL()", "reduce"),
        ("ncclDevKernel_SendRecv()", "send_recv"),
        ("ncclDevKernel_AllToAll()", "all_to_all"),
        ("ncclDevKernel_Generic_4()", "other"),
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base_", "all_to_all"),
        ("send", "send"),
        ("recv", "recv"),
        ("recv_any_source_", "recv"),
        ("barrier", "barrier"),
        ("gather", "gather"),
        ("scatter", "scatter"),
    ],
)
def test_a_collective_has_one_name_however_it_is_spelled(name: str, kind: str) -> None:
    assert collective(name) == kind


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("mesh_tp", "tp"),
        ("mesh_cp", "cp"),
        ("mesh_pp", "pp"),
        ("mesh_fsdp", "fsdp"),
        ("mesh_shard", "fsdp"),
        ("mesh_dp_shard", "fsdp"),
        ("mesh_dp", "dp"),
        ("mesh_dp_replicate", "dp"),
        ("default_pg", "world"),
        ("mesh_ep", "other"),
        ("undefined", "other"),
        ("", "other"),
    ],
)
def test_an_axis_is_told_by_the_description_of_its_group(description: str, name: str) -> None:
    assert axis(description) == name
