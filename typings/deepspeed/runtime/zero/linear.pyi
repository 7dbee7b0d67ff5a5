from typing import Any

LinearFunctionForZeroStage3: Any
