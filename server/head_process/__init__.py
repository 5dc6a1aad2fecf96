"""What networks found is read in a process of its own.

Reading takes many small calls of numpy, each of which gives the interpreter's lock away and waits to get it back: among the
threads of a busy engine that took several times as long as the reading itself, and the GPU stood still meanwhile.
"""
