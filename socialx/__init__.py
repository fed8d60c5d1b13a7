"""socialx: traffic forecasting with one shared xLSTM encoder and learned social pooling."""

__version__ = "0.1.0"
