"""python -m apportion, the form that torchrun takes."""

from apportion.cli import main

if __name__ == "__main__":
    main()
