"""ResNet v1.5 of depth 18, 34, 50, 101 and 152 on images."""
