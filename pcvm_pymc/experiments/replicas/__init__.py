"""What papers print or their authors' programs do, where the library does something else."""
