{{- define "extproc.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "extproc.selector" -}}
app.kubernetes.io/name: extproc
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "extproc.labels" -}}
{{ include "extproc.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "extproc.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "extproc.tokenSecret" -}}
{{ .Values.adminToken.existingSecret | default (printf "%s-admin" (include "extproc.name" .)) }}
{{- end -}}
