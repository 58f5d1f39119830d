"""``python -m calib_serve``: the command line."""

from calib_serve.app import main

if __name__ == "__main__":
    main()
