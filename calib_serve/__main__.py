"""``python -m calib_serve``: the command line, as torchrun starts it."""

from calib_serve.app import main

if __name__ == "__main__":
    main()
