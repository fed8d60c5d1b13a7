"""The shared xLSTM encoder: the package's weights, the exact forward, and its Triton kernels."""
