"""`python -m harness` is `knee`: how one part starts another as a process of its own."""

from harness.cli import main

if __name__ == "__main__":
    main()
