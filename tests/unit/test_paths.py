from __future__ import annotations

import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import ConfigError
from harness.paths import default_data_dir, default_wheel_dir


@pytest.mark.parametrize("env", [{}, {"HOME": ""}])
def test_without_home_it_is_the_password_databases(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path)))
    assert default_data_dir(env) == tmp_path / ".cache/hvdscale/data"


@pytest.mark.parametrize("known", [True, False])
def test_no_home_at_all_is_an_error_that_names_the_variable(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(uid: int) -> SimpleNamespace:
        if not known:
            raise KeyError(uid)
        return SimpleNamespace(pw_dir="/nonexistent")

    monkeypatch.setattr(pwd, "getpwuid", lookup)
    with pytest.raises(ConfigError, match="set HVDSCALE_DATA_DIR"):
        default_data_dir({})
    with pytest.raises(ConfigError, match="set HVDSCALE_WHEEL_DIR"):
        default_wheel_dir({})
    assert default_data_dir({"HVDSCALE_DATA_DIR": "/d"}) == Path("/d")
    assert default_data_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/hvdscale/data")
