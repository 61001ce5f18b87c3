"""What synchronises gradients: ``api.py`` has the contract, ``registry.py`` the names."""
