import os
from pathlib import Path

import matplotlib as mpl
import pytest
from hypothesis import settings

mpl.use("Agg")

# a busy machine is not a failure
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture(scope="session")
def data_folder():
    """Return the folder of real data, or skip: PCVM_DATA, or shared/data beside the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("PCVM_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data: PCVM_DATA is not set and there is no folder {beside}")
    return folder
