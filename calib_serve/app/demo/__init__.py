"""The whole way on scikit-learn's digits, with nothing faked."""
