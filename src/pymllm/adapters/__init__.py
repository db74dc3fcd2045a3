"""The implementations under examination, behind one small protocol: ours and other people's alike."""
