"""What every room stands on: errors, arrays, bins, files, text, processes, options."""
