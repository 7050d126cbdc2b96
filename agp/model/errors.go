package model

import "errors"

// Why a file is refused. Every error of this package wraps one of these and
// names the node, tensor or key at fault.
var (
	ErrFormat          = errors.New("not a valid ONNX file")
	ErrTooLarge        = errors.New("model exceeds a limit")
	ErrExternalData    = errors.New("external tensor data is not supported")
	ErrOpset           = errors.New("unsupported opset")
	ErrUnknownOperator = errors.New("unknown operator")
	ErrUnknownInput    = errors.New("input is not produced by anything")
	ErrDuplicate       = errors.New("name is defined twice")
	ErrCycle           = errors.New("graph has a cycle")
	ErrShape           = errors.New("inconsistent shape")
	ErrType            = errors.New("unsupported element type")
	ErrAttribute       = errors.New("unsupported attribute")
	ErrMetadata        = errors.New("bad model metadata")
	ErrTrial           = errors.New("trial run failed")
	ErrISA             = errors.New("instruction set not available")
)
