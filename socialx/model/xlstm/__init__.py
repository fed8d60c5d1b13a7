"""The shared xLSTM encoder: the package's weights and an exact, faster forward."""
