"""Which operation runs in which precision under autocast, as data: names by reason, for CPU and for CUDA.

Names are those of the functions in torch's core (`aten`): `x @ w` is "matmul", torch.linalg.inv is "linalg_inv". What
is in no table runs in the types that it is given. Source: torch 2.13, aten/src/ATen/autocast_mode.h and .cpp; a test
holds every table equal to what the installed torch registers.

    LOWER    inputs are cast to the 16-bit type      FLOAT32  inputs are cast to float32
    PROMOTE  inputs are cast to the widest of them   BANNED   refused, with the reason

The first three map a device type ("cpu" or "cuda") to groups of operations, each a text with blanks between the names
and a comment that says why. BANNED maps it to {operation: reason}. `names(LOWER, "cuda")` are all operations of a
table. The simulated GPUs of helpers/devices/cards follow these tables.

The two devices differ more than one expects: only CUDA's table keeps softmax, norms, exp and sums in float32. On CPU
those run in the dtype of their inputs; their kernels compute in float32 inside and round once, at the end.
"""

from __future__ import annotations

# Nearly all the work of a model. Matrix units multiply 16-bit numbers and add up in float32, several times faster.
PRODUCTS = (
    "linear matmul mm bmm addmm addbmm baddbmm linalg_vecdot conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d conv_transpose3d _convolution"
)
# Two products with a softmax between, fused: the kernel keeps the softmax in float32 itself.
ATTENTION = "scaled_dot_product_attention"
# A weight of the model like any other: it must have its input's type.
PRELU = "prelu"
# Made of the products above, inside C++ where a Python mode cannot look, so they are listed by name.
COMPOSED = "einsum chain_matmul linalg_multi_dot lstm rnn_tanh rnn_relu"
LOWER = {
    "cpu": (
        PRODUCTS,
        ATTENTION,
        PRELU,
        COMPOSED,
        # One more of these; CUDA's table has it under PROMOTE, so there it stays in float32.
        "tensordot",
        # Fused forms of these products that only the CPU has.
        "_addmm_activation mkldnn_rnn_layer _native_multi_head_attention",
    ),
    "cuda": (
        PRODUCTS,
        ATTENTION,
        PRELU,
        COMPOSED,
        # Products that only CUDA's table names.
        "addmv addr mv convolution cudnn_convolution cudnn_convolution_transpose _scaled_dot_product_flash_attention",
        # Recurrent layers and cells: products with a little arithmetic around.
        "gru _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    ),
}

# A loss is one number made of many: it sums, takes logarithms, and its rounding error reaches every gradient.
LOSSES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div nll_loss nll_loss2d nll_loss_nd cross_entropy_loss "
    "binary_cross_entropy_with_logits poisson_nll_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss "
    "multilabel_margin_loss multi_margin_loss soft_margin_loss triplet_margin_loss"
)
FLOAT32 = {
    "cpu": (
        LOSSES,
        # A loss that CUDA's table bans, and two forms that only the CPU has.
        "binary_cross_entropy ctc_loss multilabel_margin_loss_forward",
        # Long products, distances and ranks of values: errors add up or decide an order.
        "prod cdist quantile nanquantile trace",
        # Solving and decomposing matrices: 16 bits have too few digits, and no kernel.
        "cholesky cholesky_inverse cholesky_solve inverse pinverse lu_solve _lu_with_info triangular_solve qr geqrf "
        "orgqr ormqr svd linalg_cholesky linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals "
        "linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank "
        "linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve",
        # Fourier transforms and complex numbers: no 16-bit kernel on CPU.
        "fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn "
        "fft_rfft fft_rfft2 fft_rfftn stft polar view_as_complex",
        # Pooling, padding and sampling whose CPU kernel had no 16-bit form when the table was made.
        "avg_pool3d max_pool3d adaptive_avg_pool3d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
        "max_unpool2d max_unpool3d reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
        "replication_pad3d grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback "
        "fake_quantize_per_tensor_affine",
    ),
    "cuda": (
        LOSSES,
        # Their results leave fp16's range: exp(12) is above 65504, and 1 / x or x ** -2 of a small x as well.
        "exp expm1 pow reciprocal rsqrt sinh cosh tan softplus",
        # Steep somewhere: a rounded input moves the result far.
        "acos asin erfinv log log10 log1p log2",
        # Sums of exponentials.
        "softmax log_softmax logsumexp",
        # Norms subtract a mean and divide by a spread: squares overflow and small spreads round to zero.
        "layer_norm native_layer_norm rms_norm group_norm",
        # Sums and products over many elements: a 16-bit total stops growing (2048 + 1 is 2048 in fp16).
        "sum prod cumsum cumprod",
        # Lengths and distances: squares overflow at 256 in fp16.
        "norm nuclear_norm frobenius_norm linalg_vector_norm linalg_matrix_norm renorm dist cdist pdist "
        "pairwise_distance cosine_similarity",
        # Interpolation: weights between pixels.
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
        "upsample_bicubic2d _upsample_bicubic2d_aa",
    ),
}

# Their kernels want one type for all inputs.
PROMOTE = {
    "cpu": ("cat stack index_copy",),
    "cuda": ("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add",),
}

BANNED = {
    "cpu": {},
    "cuda": {
        "binary_cross_entropy": "binary_cross_entropy takes probabilities, and in fp16 a sigmoid is 0 or 1 too soon: "
        "give logits to binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss) instead"
    },
}


def names(table: dict[str, tuple[str, ...]], device_type: str) -> frozenset[str]:
    """All operations of a table for one device."""
    return frozenset(name for group in table[device_type] for name in group.split())
