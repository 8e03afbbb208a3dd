"""Rewrites ONNX operators that TVM's importer lacks, or imports wrongly, as operators it has."""
