"""The engines that sample completions, one file or folder each."""
