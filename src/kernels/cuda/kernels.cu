/* SPDX-License-Identifier: MIT */
/* kernels.cu: every CUDA kernel, for one fat binary. */
#include "mqa_logits.cu"
#include "source_smxx.cu"
#include "source_sm90.cu"
#include "sparse_mqa_logits.cu"
#include "consume.cu"
#include "block_max.cu"
#include "publish.cu"
#include "expand.cu"
#include "topk.cu"
#include "prepare.cu"
#include "k_gather.cu"
#include "step.cu"
