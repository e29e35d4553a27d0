"""What processors heed of the options that change what items cost, found by trying them."""
