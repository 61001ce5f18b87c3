"""The MPI in this process, by its own words."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from harness.provenance.libraries import mapped_files, opened

#: Whatever a vendor calls its MPI, the loader's name begins with one of these.
MPI_STEMS = ("libmpi.so", "libmpich.so", "libmpi_cray", "libmpi_gnu", "libmpi_intel", "libmpi_")
_CRAY_SWITCH = "MPICH_GPU_SUPPORT_ENABLED"  # of Cray MPICH, intro_mpi(3)


def collect(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return library string, path and CUDA-awareness; a key that cannot be known is absent."""
    for path in mapped_files(MPI_STEMS):
        library = opened(path)
        if not hasattr(library, "MPI_Get_library_version"):
            continue  # a binding's library, of C++ or Fortran
        text = _library_version(library)
        aware = cuda_aware(library, text, environ)
        return {"library": text, "path": path} | ({} if aware is None else {"cuda_aware": aware})
    return {}


def cuda_aware(library: ctypes.CDLL, text: str, environ: Mapping[str, str]) -> bool | None:
    """Say whether the running MPI takes device pointers; None where it does not tell.

    ``MPIX_Query_cuda_support`` is Open MPI's and MPICH's extension. Open MPI answers for what it
    has set up, so before MPI_Init its "no" would mean nothing.
    """
    if "CRAY" in text.upper():
        return environ.get(_CRAY_SWITCH, "0") == "1"
    if hasattr(library, "MPIX_Query_cuda_support") and _running(library):
        return bool(library.MPIX_Query_cuda_support())
    return None


def _running(library: ctypes.CDLL) -> bool:
    # Both may be called at any time (MPI 3.1, section 8.7).
    began, ended = ctypes.c_int(), ctypes.c_int()
    library.MPI_Initialized(ctypes.byref(began))
    library.MPI_Finalized(ctypes.byref(ended))
    return bool(began.value) and not ended.value


def _library_version(library: ctypes.CDLL) -> str:
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    # MPI 3.1, section 8.1.1: may be called at any time, even before MPI_Init.
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return " ".join(text.value.decode(errors="replace").split())
